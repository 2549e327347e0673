"""How two ends of a fresh connection prove to each other that they belong to one job. Sans-I/O: bytes in, bytes out.

Four messages, each a length (u16, big-endian) and a msgpack list of at most 1 KiB:

    dialler                                   listener
      Hello      versions, job, who I am, whom I want, purpose, nonce  ->
                                          <-  Challenge  versions, who I am, nonce, proof
      Proof      proof  ->
                                          <-  Welcome

A proof is an HMAC-SHA256, keyed with the job's secret, over a label for the side that makes it, the Hello as sent and
the Challenge's fields. So it is bound to both nonces (a replay fails), to both versions, job, ranks, NICs and
incarnations, and to the purpose; the label keeps one side's proof from being played back as the other's. The listener
proves itself first: a dialler never hands a proof to somebody who could not make one. Nothing is admitted before
``done``, and the listener is done only after it has verified the proof.

Either side may say Refused (a reason code and a sentence) instead of its next message. We say so to whoever speaks our
protocol: the codes tell a legitimate but misconfigured peer what to mend, and tell a stranger nothing that it could
not find out by trying. To bytes that are not ours we answer nothing. Every message begins with magic, kind and
versions, and the Hello goes on with job and rank, in every version to come: so unlike versions can always name each
other, and two jobs that meet by chance say so and not that their versions differ.

What it leaves to others: time limits, the choice of nonces (random, never used twice), whether an empty secret is
acceptable for this peer, and encryption, of which there is none.

How to drive a machine, over any kind of socket:

    machine = Dialler(identity, nic, target, purpose, nonce)        machine = Listener(identity, nic, nonce)
    send(machine.start())                                           # a listener waits for the Hello
    while not machine.done:
        try:
            send(machine.receive_data(recv()))        # what to send may be b""; an end of file before done is a failure
        except HandshakeRefused as refused:
            send(refused.farewell); close()           # farewell may be b""
    machine.peer, machine.leftover                    # leftover: bytes that already belong to frames
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from r2ccl.errors import AuthenticationError, InvalidTransition
from r2ccl.protocol.wire import WIRE_VERSION

#: First field of every message.
MAGIC = "r2ccl"
NONCE_BYTES = 32
#: The largest message, checked before anything is allocated for it. The longest legitimate one has about 400 bytes.
MESSAGE_BYTES_MAX = 1024
#: Longest texts: the name of a job or package version, in bytes, and the sentence of a refusal.
NAME_BYTES_MAX = 128
SENTENCE_CHARACTERS_MAX = 300
_LENGTH_BYTES = 2
_U64_MAX = (1 << 64) - 1
_DIALLER_LABEL = b"r2ccl dialler"
_LISTENER_LABEL = b"r2ccl listener"


class Purpose(enum.IntEnum):
    """What the connection is for. All but STORE have the values of ``transport.interface.Purpose``."""

    CONTROL = 1
    BULK = 2
    STORE = 3
    #: Only to see whether somebody is there.
    PROBE = 4


class Reason(enum.StrEnum):
    """Why a connection was refused."""

    VERSION = "version"  #: another wire or package version
    JOB = "job"  #: another job listens there
    SECRET = "secret"  #: a proof that does not verify: another secret, or a replay
    NOT_ME = "not me"  #: another rank or NIC of the job listens there
    INCARNATION = "incarnation"  #: a rank that was restarted, or its forerunner
    PURPOSE = "purpose"  #: nothing here serves that purpose
    GARBAGE = "garbage"  #: not our protocol
    OTHER = "other"  #: a code that this version does not know


class HandshakeRefused(AuthenticationError):
    """The handshake failed. The connection must be closed, after sending ``farewell`` if it isn't empty.

    ``reason`` is a code, ``by_peer`` says which side refused. Nothing was admitted.
    """

    def __init__(self, reason: Reason, sentence: str, *, by_peer: bool = False, farewell: bytes = b"") -> None:
        self.reason = reason
        self.sentence = sentence
        self.by_peer = by_peer
        self.farewell = farewell
        super().__init__(f"{'the peer refused' if by_peer else 'refused'} ({reason.value}): {sentence}")

    def __reduce__(self) -> tuple[object, ...]:
        return _refused_again, (self.reason, self.sentence, self.by_peer, self.farewell)


def _refused_again(reason: Reason, sentence: str, by_peer: bool, farewell: bytes) -> HandshakeRefused:
    return HandshakeRefused(reason, sentence, by_peer=by_peer, farewell=farewell)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is, the same on all its connections."""

    job: str
    secret: bytes = field(repr=False)
    rank: int
    #: 64 random bits, drawn once per connect().
    incarnation: int
    package_version: str
    wire_version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a dialler wants. ``incarnation`` is None where it is not known yet, as at the rendezvous."""

    rank: int
    nic: int
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who is at the other end, proven."""

    rank: int
    nic: int
    incarnation: int
    purpose: Purpose
    package_version: str


class _Kind(enum.IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5


@dataclass(frozen=True, slots=True)
class _Hello:
    job: str
    rank: int
    nic: int
    incarnation: int
    target_rank: int
    target_nic: int
    target_incarnation: int | None
    purpose: int
    nonce: bytes


class _Machine:
    """What both sides share: cutting the stream into messages, and refusing."""

    def __init__(self, identity: Identity, nic: int, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        if not (_is_name(identity.job) and _is_name(identity.package_version)):
            raise ValueError(f"the names of job and package version may have at most {NAME_BYTES_MAX} bytes each")
        self._identity = identity
        self._nic = nic
        self._nonce = nonce
        self._buffer = bytearray()
        self._refused: HandshakeRefused | None = None
        self._peer: PeerIdentity | None = None

    @property
    def done(self) -> bool:
        """The other end is proven and admitted."""
        return self._peer is not None

    @property
    def peer(self) -> PeerIdentity:
        """Who is at the other end. Raises :class:`InvalidTransition` before ``done``."""
        if self._peer is None:
            raise InvalidTransition("a handshake was asked for its peer before it was done")
        return self._peer

    @property
    def leftover(self) -> bytes:
        """Bytes that arrived behind the handshake and belong to the frames that follow."""
        if self._peer is None:
            raise InvalidTransition("a handshake was asked for its leftover before it was done")
        return bytes(self._buffer)

    def receive_data(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take what arrived, in pieces of any size; returns what to send, maybe nothing.

        Raises :class:`HandshakeRefused`, the same again if it is called once more, and :class:`InvalidTransition` after
        ``done``: those bytes are no longer the handshake's.
        """
        if self._refused is not None:
            raise self._refused
        if self._peer is not None:
            raise InvalidTransition("a handshake got bytes after it was done")
        self._buffer += data
        answer = b""
        while self._peer is None:
            message = self._next_message()
            if message is None:
                break
            answer += self._handle(message)
        return answer

    def _next_message(self) -> bytes | None:
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if length > MESSAGE_BYTES_MAX:
            raise self._refuse_silently(f"a message of {length} bytes is over the limit of {MESSAGE_BYTES_MAX}")
        end = _LENGTH_BYTES + length
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        return message

    def _handle(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _read(self, message: bytes, expected: _Kind, size: int) -> list[Any]:
        """The fields behind the versions of a message of the expected kind, or the refusal that it is or deserves."""
        try:
            fields = msgpack.unpackb(message)
        except (ValueError, msgpack.UnpackException) as bad:
            raise self._refuse_silently(f"a message is no msgpack ({type(bad).__name__})") from bad
        if not isinstance(fields, list) or len(fields) < 4 or fields[0] != MAGIC:
            raise self._refuse_silently("a message does not begin as one of ours")
        _, kind, wire, package, *rest = fields
        if not (_is_number(kind) and _is_number(wire) and _is_name(package)):
            raise self._refuse_silently("a message does not begin as one of ours")
        if kind == _Kind.REFUSED:
            raise self._hear_refusal(rest)
        if kind != expected:
            raise self._refuse_silently(f"expected {expected.name}, got a message of kind {kind}")
        self._glance(rest)
        if (wire, package) != (self._identity.wire_version, self._identity.package_version):
            raise self._refuse(Reason.VERSION, self._unlike(wire, package))
        if len(rest) != size:
            raise self._refuse_silently(f"{expected.name} came with {len(rest)} fields and not {size}")
        return rest

    def _glance(self, rest: list[Any]) -> None:
        """Look at what is at the same place in every version, before versions are compared."""

    def _unlike(self, wire: int, package: str) -> str:
        mine = self._identity
        return (
            f"one side (rank {mine.rank}) runs r2ccl {mine.package_version} (wire version {mine.wire_version}), "
            f"the other r2ccl {_printable(package)} (wire version {wire}); all ranks of a job need the same"
        )

    def _message(self, kind: _Kind, *fields: Any) -> bytes:
        body: bytes = msgpack.packb([MAGIC, kind, self._identity.wire_version, self._identity.package_version, *fields])
        assert len(body) <= MESSAGE_BYTES_MAX
        return len(body).to_bytes(_LENGTH_BYTES, "big") + body

    def _refuse(self, reason: Reason, sentence: str) -> HandshakeRefused:
        farewell = self._message(_Kind.REFUSED, reason.value, sentence[:SENTENCE_CHARACTERS_MAX])
        self._refused = HandshakeRefused(reason, sentence, farewell=farewell)
        return self._refused

    def _refuse_silently(self, sentence: str) -> HandshakeRefused:
        self._refused = HandshakeRefused(Reason.GARBAGE, sentence)
        return self._refused

    def _hear_refusal(self, rest: list[Any]) -> HandshakeRefused:
        if len(rest) < 2 or not isinstance(rest[0], str) or not isinstance(rest[1], str):
            return self._refuse_silently("a refusal without a reason")
        known = {reason.value: reason for reason in Reason}
        sentence = _printable(rest[1])[:SENTENCE_CHARACTERS_MAX]
        self._refused = HandshakeRefused(known.get(rest[0], Reason.OTHER), sentence, by_peer=True)
        return self._refused

    def _proof(self, label: bytes, hello: bytes, challenge: bytes) -> bytes:
        """Over parts whose lengths are part of what is signed, so that no boundary can be moved."""
        signed = b"".join(len(part).to_bytes(4, "big") + part for part in (label, hello, challenge))
        return hmac.digest(self._identity.secret, signed, "sha256")


class Dialler(_Machine):
    """The side that opened the connection."""

    def __init__(self, identity: Identity, nic: int, target: Target, purpose: int, nonce: bytes) -> None:
        super().__init__(identity, nic, nonce)
        self._target = target
        self._purpose = Purpose(purpose)
        self._hello = b""
        self._challenged: PeerIdentity | None = None

    def start(self) -> bytes:
        """The Hello, to be sent first."""
        if self._hello:
            raise InvalidTransition("a handshake was started twice")
        me, target = self._identity, self._target
        who = (me.job, me.rank, self._nic, me.incarnation)
        whom = (target.rank, target.nic, target.incarnation)
        message = self._message(_Kind.HELLO, *who, *whom, self._purpose, self._nonce)
        self._hello = message[_LENGTH_BYTES:]
        return message

    def _handle(self, message: bytes) -> bytes:
        if not self._hello:
            raise InvalidTransition("a dialler got bytes before it was started")
        if self._challenged is None:
            return self._answer(message)
        self._read(message, _Kind.WELCOME, 0)
        self._peer = self._challenged
        return b""

    def _answer(self, message: bytes) -> bytes:
        rank, nic, incarnation, nonce, proof = self._read(message, _Kind.CHALLENGE, 5)
        if not (_is_number(rank) and _is_number(nic) and _is_number(incarnation) and _is_nonce(nonce)):
            raise self._refuse_silently("a challenge with fields of the wrong type")
        challenge = _signed_challenge(self._identity, rank, nic, incarnation, nonce)
        expected = self._proof(_LISTENER_LABEL, self._hello, challenge)
        if not isinstance(proof, bytes) or not hmac.compare_digest(proof, expected):
            raise self._refuse(Reason.SECRET, _wrong_secret(self._identity.rank, "the listener"))
        target = self._target
        if (rank, nic) != (target.rank, target.nic):
            raise self._refuse(Reason.NOT_ME, _not_me((target.rank, target.nic), (rank, nic)))
        if target.incarnation not in (None, incarnation):
            raise self._refuse(Reason.INCARNATION, f"rank {rank} was restarted: it is not the one that joined the job")
        self._challenged = PeerIdentity(rank, nic, incarnation, self._purpose, self._identity.package_version)
        return self._message(_Kind.PROOF, self._proof(_DIALLER_LABEL, self._hello, challenge))


class Listener(_Machine):
    """The side that accepted the connection.

    ``purposes`` are the purposes served here. ``incarnations`` maps rank to the incarnation that the job admitted;
    None means that none is known yet and any is fine, as at the rendezvous.
    """

    def __init__(
        self,
        identity: Identity,
        nic: int,
        nonce: bytes,
        purposes: Collection[int] = (Purpose.CONTROL, Purpose.BULK, Purpose.PROBE),
        incarnations: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(identity, nic, nonce)
        self._purposes = frozenset(int(purpose) for purpose in purposes)
        self._incarnations = incarnations
        self._expected_proof = b""
        self._claimed: PeerIdentity | None = None
        self._claimed_rank: int | None = None

    @property
    def claimed_rank(self) -> int | None:
        """The rank that a Hello for this job claimed, in whatever version. Unproven before ``done``."""
        return self._claimed_rank

    def _glance(self, rest: list[Any]) -> None:
        if self._claimed is None and len(rest) >= 2 and _is_name(rest[0]) and _is_number(rest[1]):
            if rest[0] != self._identity.job:
                raise self._refuse(Reason.JOB, "another job listens here")
            self._claimed_rank = rest[1]

    def _handle(self, message: bytes) -> bytes:
        if self._claimed is None:
            return self._challenge(message)
        (proof,) = self._read(message, _Kind.PROOF, 1)
        if not isinstance(proof, bytes) or not hmac.compare_digest(proof, self._expected_proof):
            raise self._refuse(Reason.SECRET, _wrong_secret(self._identity.rank, "the dialler"))
        self._peer = self._claimed
        return self._message(_Kind.WELCOME)

    def _challenge(self, message: bytes) -> bytes:
        hello = self._read_hello(message)
        self._check(hello)
        me = self._identity
        who = (me.rank, self._nic, me.incarnation, self._nonce)
        signed = _signed_challenge(me, *who)
        self._expected_proof = self._proof(_DIALLER_LABEL, message, signed)
        self._claimed = PeerIdentity(
            hello.rank, hello.nic, hello.incarnation, Purpose(hello.purpose), me.package_version
        )
        return self._message(_Kind.CHALLENGE, *who, self._proof(_LISTENER_LABEL, message, signed))

    def _read_hello(self, message: bytes) -> _Hello:
        hello = _Hello(*self._read(message, _Kind.HELLO, 9))
        numbers = (hello.rank, hello.nic, hello.incarnation, hello.target_rank, hello.target_nic, hello.purpose)
        right = (
            _is_name(hello.job)
            and all(_is_number(number) for number in numbers)
            and (hello.target_incarnation is None or _is_number(hello.target_incarnation))
            and _is_nonce(hello.nonce)
        )
        if not right:
            raise self._refuse_silently("a hello with fields of the wrong type")
        return hello

    def _check(self, hello: _Hello) -> None:
        me = self._identity
        if (hello.target_rank, hello.target_nic) != (me.rank, self._nic):
            wanted = (hello.target_rank, hello.target_nic)
            raise self._refuse(Reason.NOT_ME, _not_me(wanted, (me.rank, self._nic)))
        if hello.target_incarnation not in (None, me.incarnation):
            raise self._refuse(Reason.INCARNATION, f"rank {me.rank} was restarted: it is not the one you knew")
        if self._incarnations is not None and self._incarnations.get(hello.rank) != hello.incarnation:
            raise self._refuse(Reason.INCARNATION, f"the job admitted no such incarnation of rank {hello.rank}")
        if hello.purpose not in self._purposes:
            raise self._refuse(Reason.PURPOSE, f"rank {me.rank} does not serve purpose {hello.purpose} here")


def _signed_challenge(identity: Identity, rank: int, nic: int, incarnation: int, nonce: bytes) -> bytes:
    """The listener's own statement, versions included; both sides have agreed on those when they get here."""
    fields = [MAGIC, identity.wire_version, identity.package_version, identity.job, rank, nic, incarnation, nonce]
    packed: bytes = msgpack.packb(fields)
    return packed


def _not_me(wanted: tuple[int, int], there: tuple[int, int]) -> str:
    return f"rank {wanted[0]}, NIC {wanted[1]} was wanted; rank {there[0]}, NIC {there[1]} listens there"


def _wrong_secret(checked_by: int, whom: str) -> str:
    return (
        f"rank {checked_by} found that {whom} does not know the job's secret; "
        "R2CCL_SECRET or the content of R2CCL_SECRET_FILE must be the same on all ranks"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _U64_MAX


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value.encode(errors="replace")) <= NAME_BYTES_MAX


def _is_nonce(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == NONCE_BYTES


def _printable(text: str) -> str:
    """A stranger's text may end up in a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
