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

from r2ccl.errors import AuthenticationError, InvalidTransition
from r2ccl.protocol.handshake_messages import (
    LENGTH_BYTES,
    NAME_BYTES_MAX,
    SENTENCE_CHARACTERS_MAX,
    Challenge,
    Garbage,
    Hello,
    Kind,
    cut,
    is_name,
    is_number,
    pack,
    printable,
    proof,
    read_challenge,
    read_hello,
    read_opening,
    read_proof,
    read_refusal,
)
from r2ccl.protocol.handshake_messages import NONCE_BYTES as NONCE_BYTES  # whoever makes a machine draws the nonce
from r2ccl.protocol.wire import WIRE_VERSION

_DIALLER_LABEL = b"r2ccl dialler"
_LISTENER_LABEL = b"r2ccl listener"


class Purpose(enum.IntEnum):
    """What the connection is for. All but STORE and FAULTS have the values of ``transport.interface.Purpose``."""

    CONTROL = 1
    BULK = 2
    STORE = 3
    #: Only to see whether somebody is there.
    PROBE = 4
    #: To ask for faults, see protocol.fault_control.
    FAULTS = 5


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


class _Machine:
    """What both sides share: cutting the stream into messages, and refusing."""

    def __init__(self, identity: Identity, nic: int, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        if not (is_name(identity.job) and is_name(identity.package_version)):
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
        try:
            while not self.done and (message := cut(self._buffer)) is not None:
                answer += self._handle(message)
        except Garbage as garbage:
            self._refused = HandshakeRefused(Reason.GARBAGE, str(garbage))
            raise self._refused from garbage
        return answer

    def _handle(self, message: bytes) -> bytes:
        raise AssertionError(f"{type(self).__name__} handles nothing")

    def _read(self, message: bytes, expected: Kind) -> tuple[Any, ...]:
        """The fields behind the versions of a message of that kind. Raises the refusal that it is or deserves."""
        opening = read_opening(message)
        if opening.kind == Kind.REFUSED:
            raise self._hear_refusal(opening.rest)
        if opening.kind != expected:
            raise Garbage(f"expected {expected.name}, got a message of kind {opening.kind}")
        self._glance(opening.rest)
        mine, theirs = self._identity, (opening.wire_version, opening.package_version)
        if theirs != (mine.wire_version, mine.package_version):
            raise self._refuse(Reason.VERSION, self._unlike(*theirs))
        return opening.rest

    def _glance(self, rest: tuple[Any, ...]) -> None:
        """Look at what is at the same place in every version, before versions are compared."""

    def _unlike(self, wire: int, package: str) -> str:
        mine = self._identity
        return (
            f"one side (rank {mine.rank}) runs r2ccl {mine.package_version} (wire version {mine.wire_version}), "
            f"the other r2ccl {printable(package)} (wire version {wire}); all ranks of a job need the same"
        )

    def _message(self, kind: Kind, *fields: Any) -> bytes:
        return pack(kind, self._identity.wire_version, self._identity.package_version, *fields)

    def _refuse(self, reason: Reason, sentence: str) -> HandshakeRefused:
        farewell = self._message(Kind.REFUSED, reason.value, sentence[:SENTENCE_CHARACTERS_MAX])
        self._refused = HandshakeRefused(reason, sentence, farewell=farewell)
        return self._refused

    def _hear_refusal(self, rest: tuple[Any, ...]) -> HandshakeRefused:
        code, sentence = read_refusal(rest)
        known = {reason.value: reason for reason in Reason}
        self._refused = HandshakeRefused(known.get(code, Reason.OTHER), sentence, by_peer=True)
        return self._refused

    def _proof(self, label: bytes, hello: bytes, challenge: Challenge) -> bytes:
        """Job and versions of the challenge are ours: sides that differ in those do not get here."""
        statement = self._message(Kind.CHALLENGE, self._identity.job, *challenge.fields())
        return proof(self._identity.secret, label, hello, statement)


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
        hello = Hello(
            job=me.job,
            rank=me.rank,
            nic=self._nic,
            incarnation=me.incarnation,
            target_rank=target.rank,
            target_nic=target.nic,
            target_incarnation=target.incarnation,
            purpose=self._purpose,
            nonce=self._nonce,
        )
        message = self._message(Kind.HELLO, *hello.fields())
        self._hello = message[LENGTH_BYTES:]
        return message

    def _handle(self, message: bytes) -> bytes:
        if not self._hello:
            raise InvalidTransition("a dialler got bytes before it was started")
        if self._challenged is None:
            return self._answer(message)
        self._read(message, Kind.WELCOME)
        self._peer = self._challenged
        return b""

    def _answer(self, message: bytes) -> bytes:
        challenge, proven = read_challenge(self._read(message, Kind.CHALLENGE))
        expected = self._proof(_LISTENER_LABEL, self._hello, challenge)
        if not hmac.compare_digest(proven, expected):
            raise self._refuse(Reason.SECRET, _wrong_secret(self._identity.rank, "the listener"))
        target, there = self._target, (challenge.rank, challenge.nic)
        if there != (target.rank, target.nic):
            raise self._refuse(Reason.NOT_ME, _not_me((target.rank, target.nic), there))
        if target.incarnation not in (None, challenge.incarnation):
            sentence = f"rank {challenge.rank} was restarted: it is not the one that joined the job"
            raise self._refuse(Reason.INCARNATION, sentence)
        self._challenged = PeerIdentity(*there, challenge.incarnation, self._purpose, self._identity.package_version)
        return self._message(Kind.PROOF, self._proof(_DIALLER_LABEL, self._hello, challenge))


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

    @property
    def greeted(self) -> bool:
        """A Hello came that fits us: our job, versions, rank and NIC, and an incarnation that was admitted."""
        return self._claimed is not None

    def _glance(self, rest: tuple[Any, ...]) -> None:
        if self._claimed is None and len(rest) >= 2 and is_name(rest[0]) and is_number(rest[1]):
            if rest[0] != self._identity.job:
                raise self._refuse(Reason.JOB, "another job listens here")
            self._claimed_rank = rest[1]

    def _handle(self, message: bytes) -> bytes:
        if self._claimed is None:
            return self._challenge(message)
        proven = read_proof(self._read(message, Kind.PROOF))
        if not hmac.compare_digest(proven, self._expected_proof):
            raise self._refuse(Reason.SECRET, _wrong_secret(self._identity.rank, "the dialler"))
        self._peer = self._claimed
        return self._message(Kind.WELCOME)

    def _challenge(self, message: bytes) -> bytes:
        hello = read_hello(self._read(message, Kind.HELLO))
        self._check(hello)
        me = self._identity
        challenge = Challenge(me.rank, self._nic, me.incarnation, self._nonce)
        self._expected_proof = self._proof(_DIALLER_LABEL, message, challenge)
        purpose = Purpose(hello.purpose)
        self._claimed = PeerIdentity(hello.rank, hello.nic, hello.incarnation, purpose, me.package_version)
        proven = self._proof(_LISTENER_LABEL, message, challenge)
        return self._message(Kind.CHALLENGE, *challenge.fields(), proven)

    def _check(self, hello: Hello) -> None:
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


def _not_me(wanted: tuple[int, int], there: tuple[int, int]) -> str:
    return f"rank {wanted[0]}, NIC {wanted[1]} was wanted; rank {there[0]}, NIC {there[1]} listens there"


def _wrong_secret(checked_by: int, whom: str) -> str:
    return (
        f"rank {checked_by} found that {whom} does not know the job's secret; "
        "R2CCL_SECRET or the content of R2CCL_SECRET_FILE must be the same on all ranks"
    )
