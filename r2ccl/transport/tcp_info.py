"""What the kernel knows about a TCP connection: the evidence that health judges by.

On other systems than Linux there is no such account; a sample then says nothing, and faults are found by errors alone.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from r2ccl.transport.interface import PathSample

# struct tcp_info of Linux, as far as needed; offsets are part of the kernel's interface. In order: probes, snd_mss,
# unacked, lost, last_data_recv, last_ack_recv, rtt, total_retrans, bytes_acked, notsent_bytes, data_segs_out,
# delivered, snd_wnd.
_TCP_INFO = struct.Struct("=3xB12xI4xI4xI16xII8xI28xI16xQ16xI8xI32xI32xI")
#: The kernel moves its smoothed round trip by an eighth of the way to each answer (RFC 6298).
_RTT_WEIGHT = 1 / 8
#: Our kernel asks whether a closed window is open again, first after 0.2 s, then after 0.4, 0.8 and so on. The peer's
#: answers only one such question in half a second (tcp_invalid_ratelimit), so it ignores the second, and would look
#: dead for 0.8 s, until the third [M: a rank that was stopped for 4 s lost its link]. One question that nobody answered
#: says something only if the last answer is longer ago than it is when the one after an ignored one gets its own.
IGNORED_S = 1.5


def sample(sock: socket.socket, queued_bytes: int) -> PathSample:
    """The state of the connection now; ``queued_bytes`` are those that the kernel has not taken yet."""
    try:
        account = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except (OSError, AttributeError):
        return PathSample(0, queued_bytes, 0.0, 0.0, True)
    # Older kernels know less: their account is shorter. All ones mean a window that is open.
    probes, mss, unacked, lost, data_ms, ack_ms, rtt_us, resent, acked_bytes, unsent, sent, answered, window = (
        _TCP_INFO.unpack(account.ljust(_TCP_INFO.size, b"\xff"))
    )
    silence_s = min(data_ms, ack_ms) / 1000
    return PathSample(
        in_flight_bytes=unacked * max(1, mss),
        unsent_bytes=queued_bytes + unsent,
        silence_s=silence_s,
        rtt_s=rtt_us / 1e6,
        limited=unacked == 0 or window == 0,
        resent_segments=resent,
        sent_segments=sent,
        answered_segments=answered,
        acked_bytes=acked_bytes,
        rtt_weight=_RTT_WEIGHT,
        probing=probes > 1 or (probes == 1 and silence_s >= IGNORED_S),  # it counts those since the last answer
        missing_segments=lost,
    )


def answer_at_once(sock: socket.socket) -> None:
    """Let our kernel go on answering what arrives at once. Where both ends happen to speak at nearly the same time, it
    takes that for a conversation and waits up to 40 ms for our next word to send the answer along with: a beat of the
    far end's would seem to take as long as its timer and ours are apart. Linux alone can be told."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is not None:
        with contextlib.suppress(OSError):  # of a connection that has ended: whoever reads from it will hear
            sock.setsockopt(socket.IPPROTO_TCP, option, 1)
