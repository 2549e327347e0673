"""What the kernel knows about a TCP connection: the evidence that health judges by.

On other systems than Linux there is no such account; a sample then says nothing, and faults are found by errors alone.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from r2ccl.transport.interface import PathSample

# struct tcp_info of Linux, as far as needed; offsets are part of the kernel's interface.
_TCP_INFO_BYTES = 232
_SND_MSS_AT = 16
_UNACKED_AT = 24
_LAST_DATA_RECV_AT = 52
_LAST_ACK_RECV_AT = 56
_RTT_AT = 68
_TOTAL_RETRANS_AT = 100
_BYTES_ACKED_AT = 120
_NOTSENT_AT = 144
_DATA_SEGS_OUT_AT = 156
_DELIVERED_AT = 192
_SND_WND_AT = 228
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
#: The kernel moves its smoothed round trip by an eighth of the way to each answer (RFC 6298).
_RTT_WEIGHT = 1 / 8


def sample(sock: socket.socket, queued_bytes: int) -> PathSample:
    """The state of the connection now; ``queued_bytes`` are those that the kernel has not taken yet."""
    try:
        account = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, AttributeError):
        return PathSample(0, queued_bytes, 0.0, 0.0, True)
    # Older kernels know less: their account is shorter. All ones mean a window that is open.
    account = account.ljust(_TCP_INFO_BYTES, b"\xff")
    unacked = _field(account, _UNACKED_AT)
    return PathSample(
        in_flight_bytes=unacked * max(1, _field(account, _SND_MSS_AT)),
        unsent_bytes=queued_bytes + _field(account, _NOTSENT_AT),
        silence_s=min(_field(account, _LAST_DATA_RECV_AT), _field(account, _LAST_ACK_RECV_AT)) / 1000,
        rtt_s=_field(account, _RTT_AT) / 1e6,
        limited=unacked == 0 or _field(account, _SND_WND_AT) == 0,
        resent_segments=_field(account, _TOTAL_RETRANS_AT),
        sent_segments=_field(account, _DATA_SEGS_OUT_AT),
        answered_segments=_field(account, _DELIVERED_AT),
        acked_bytes=int(_U64.unpack_from(account, _BYTES_ACKED_AT)[0]),
        rtt_weight=_RTT_WEIGHT,
    )


def answer_at_once(sock: socket.socket) -> None:
    """Let our kernel go on answering what arrives at once. Where both ends happen to speak at nearly the same time, it
    takes that for a conversation and waits up to 40 ms for our next word to send the answer along with: a beat of the
    far end's would seem to take as long as its timer and ours are apart. Linux alone can be told."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is not None:
        with contextlib.suppress(OSError):  # of a connection that has ended: whoever reads from it will hear
            sock.setsockopt(socket.IPPROTO_TCP, option, 1)


def _field(account: bytes, offset: int) -> int:
    return int(_U32.unpack_from(account, offset)[0])
