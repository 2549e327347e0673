"""What is seen of a link between two looks, and how a look is made of it.

The transport keeps an account of each connection, and is asked for it now and then: every few milliseconds while bytes
are owed, and once at each look. Four things are made of these glances.

*How long an answer took.* A kernel shows a smoothed round trip: a change shows late in it, an outlier long, and two
looks at it are not two samples. But it also says how many segments were answered, and that undoes the smoothing: if
one was, exactly; if several were, what it would be had all of them taken equally long, which never exaggerates. The
shortest answer of a look counts, for it met the least of other people's queues, and the load that the link had then.

Not every answer tells of the path. The far kernel may keep one back for up to 40 ms, in the hope of sending it along
with what its process says next; a peer that computes would look like a path that became slow. It answers at once what
comes after a pause, and while a stream flows. Answers to anything between are not counted.

*How much it carried*, compared with its fair share of what all links to the peer carried. That says something only
while there was more to send than they took; a link that is offered little carries little.

*How much went out again*, of so many segments at least that a single loss is no ratio; a quiet link needs several
looks to gather them.

*Whether the peer's window was closed* for long: then all of it accuses nobody. After a stall of our own what was
gathered is thrown away.
"""

from __future__ import annotations

from typing import Protocol

from r2ccl.protocol.evidence import Look

#: After a pause this long a kernel answers at once: longer than the timer (at least 200 ms) by which it tells.
PAUSE_S = 0.25
#: So many answers between two glances are a stream. At a glance every 10 ms none of them can have waited 40.
STREAM_ANSWERS = 16
#: Of fewer segments the resent ratio is not taken: of 1000 a single loss is 0.1 %.
SEGMENTS_LEAST = 1000
#: Of fewer glances nobody can say that there was more to send than the links took.
GLANCES_LEAST = 5
#: In this share of the glances more must have waited.
PRESSED_SHARE = 0.5
#: Where the peer's window was closed at a larger share of them, it was the peer that was slow.
CLOSED_SHARE = 0.1


class Account(Protocol):
    """What must be known of a connection; transport.interface.PathSample fits."""

    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def limited(self) -> bool: ...
    @property
    def rtt_s(self) -> float: ...
    @property
    def rtt_weight(self) -> float: ...
    @property
    def answered_segments(self) -> int: ...
    @property
    def sent_segments(self) -> int: ...
    @property
    def resent_segments(self) -> int: ...
    @property
    def acked_bytes(self) -> int: ...


class _Connection:
    """One connection's account as it was at the last glance."""

    __slots__ = ("account", "answered_at_s")

    def __init__(self) -> None:
        #: None: what is counted from is not known yet.
        self.account: Account | None = None
        #: When a glance last found new answers.
        self.answered_at_s = 0.0

    def answer_s(self, account: Account, now: float) -> float | None:
        """How long the answers since the last glance took; None: there are none, or none that tell of the path."""
        before = self.account
        if before is None:
            self.answered_at_s = now
            return None
        answers = account.answered_segments - before.answered_segments
        if answers <= 0:
            return None
        paused = now - self.answered_at_s >= PAUSE_S
        self.answered_at_s = now
        if not paused and answers < STREAM_ANSWERS:
            return None
        kept = (1 - account.rtt_weight) ** answers
        answer_s = (account.rtt_s - kept * before.rtt_s) / (1 - kept)
        return answer_s if answer_s > 0 else account.rtt_s


class Lookout:
    """Gathers what is seen of one link."""

    __slots__ = (
        "_began_s",
        "_bulk",
        "_closed",
        "_control",
        "_glances",
        "_load",
        "_pressed",
        "_resent",
        "_rtt_s",
        "_sent",
        "carried_bytes",
        "latest_rtt_s",
    )

    def __init__(self) -> None:
        #: The shortest answer of the latest look that had any: what the link offers as a backup.
        self.latest_rtt_s: float | None = None
        self.restart()

    def restart(self) -> None:
        """We were away ourselves: what was gathered since the last look is void, and counting begins anew."""
        self._control, self._bulk = _Connection(), _Connection()
        self._sent = self._resent = 0
        self._begin(None)

    def forget(self) -> None:
        """The link was lost: what comes back has other connections, and may be another path."""
        self.latest_rtt_s = None
        self.restart()

    def _begin(self, now: float | None) -> None:
        self._began_s = now
        self._rtt_s: float | None = None
        self._load = 0
        self._glances = self._pressed = 0
        self._closed = 0
        #: What the far end's kernel got in bulk since the last look.
        self.carried_bytes = 0

    @property
    def is_pressed(self) -> bool:
        """Since the last look there was mostly more to send to the peer than its links took, as far as this link's
        glances tell: one that carries little is not glanced at while it owes nothing."""
        return self._glances >= GLANCES_LEAST and self._pressed >= PRESSED_SHARE * self._glances

    def glance(self, control: Account, bulk: Account, load: int, pressed: bool, now: float) -> None:
        """The accounts as they are now. ``load``: see evidence.load_level; ``pressed``: chunks to the peer wait because
        no lane has room."""
        if self._began_s is None:
            self._began_s = now
        self._glances += 1
        self._pressed += pressed
        self._closed += bulk.limited and bulk.in_flight_bytes > 0
        if self._bulk.account is not None:
            self.carried_bytes += bulk.acked_bytes - self._bulk.account.acked_bytes
        self._hear(self._control, control, load, now)
        self._hear(self._bulk, bulk, load, now)

    def _hear(self, connection: _Connection, account: Account, load: int, now: float) -> None:
        answer_s = connection.answer_s(account, now)
        if answer_s is not None and (self._rtt_s is None or answer_s < self._rtt_s):
            self._rtt_s, self._load = answer_s, load
            self.latest_rtt_s = answer_s
        if connection.account is not None:
            self._sent += account.sent_segments - connection.account.sent_segments
            self._resent += account.resent_segments - connection.account.resent_segments
        connection.account = account

    def look(
        self,
        fair_share_bytes: float | None,
        backup_rtt_s: float | None,
        errors: int | None,
        now: float,
        among_others: bool = False,
    ) -> Look:
        """All that was seen since the last look; the next begins. ``fair_share_bytes``: what the link should have
        carried meanwhile; None: nobody can say. ``among_others``: its NIC carried much that is not ours."""
        throughput = fair_share = resent_ratio = None
        period_s = now - self._began_s if self._began_s is not None else 0.0
        if fair_share_bytes and period_s > 0:
            throughput, fair_share = self.carried_bytes / period_s, fair_share_bytes / period_s
        if self._sent >= SEGMENTS_LEAST:
            resent_ratio = self._resent / self._sent
            self._sent = self._resent = 0
        seen = Look(
            rtt_s=self._rtt_s,
            backup_rtt_s=backup_rtt_s,
            load=self._load,
            throughput=throughput,
            fair_share=fair_share,
            resent_ratio=resent_ratio,
            errors=errors,
            limited=self._closed > CLOSED_SHARE * self._glances,
            among_others=among_others,
        )
        self._begin(now)
        return seen
