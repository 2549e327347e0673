"""Knocks at peers' NICs, few at a time, so that diagnosis costs a job next to nothing also when a switch fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from r2ccl.actors.links import Port
from r2ccl.actors.shared import Shared
from r2ccl.protocol.diagnosis import Knock
from r2ccl.protocol.verdict import Said
from r2ccl.transport.interface import Answer, Probe

#: Knocks out at once. When a switch takes a rail of 1,000 ranks with it, each examines a few links and is asked by a
#: few others: 16 sockets a rank suffice to get through that within two rounds, and a host of 8 ranks holds 128.
AT_ONCE_MAX = 16
#: Knocks that wait for their turn; more are answered ``UNKNOWN`` at once. Two rounds, beyond which whoever asked has
#: given up waiting.
WAITING_MAX = 2 * AT_ONCE_MAX
#: A second packet goes out after this part of the time, because a single one may be lost on a path that works.
SECOND_AFTER = 1 / 3

Heard = Callable[[Said], None]
_MEANING: Final = {
    Answer.ANSWERED: Said.ANSWERED,
    Answer.REFUSED: Said.REFUSED,
    Answer.SILENT: Said.SILENT,
    Answer.UNTRIED: Said.UNKNOWN,
}


class _Knocking:
    """One knock and its repetition; whoever wants to know the same shares it."""

    __slots__ = ("heard", "outstanding", "probes", "worst")

    def __init__(self, heard: Heard) -> None:
        self.heard = [heard]
        self.probes: list[Probe] = []
        self.outstanding = 0
        #: What to say if no sign comes.
        self.worst = Said.UNKNOWN


class Knocker:
    """One per rank."""

    def __init__(self, shared: Shared, ports: list[Port]) -> None:
        self._shared = shared
        self._ports = ports
        self._out: dict[Knock, _Knocking] = {}
        self._waiting: deque[tuple[Knock, Heard]] = deque()
        #: A path whose round trip is longer counts as silent anyway.
        self.wait_s = shared.settings.silence_s

    @property
    def longest_s(self) -> float:
        """From the first packet of a knock to the last answer."""
        return self.wait_s * (1 + SECOND_AFTER)

    def knock(self, knock: Knock, heard: Heard) -> None:
        """``heard`` is called once, on a later turn of the loop; never if the rank closes meanwhile."""
        if knock in self._out:
            self._out[knock].heard.append(heard)
        elif not self._ports[knock.local_nic].is_up or len(self._waiting) >= WAITING_MAX:
            self._shared.timers.after(0.0, heard, Said.UNKNOWN)
        elif len(self._out) >= AT_ONCE_MAX:
            self._waiting.append((knock, heard))
        else:
            knocking = self._out[knock] = _Knocking(heard)
            self._send(knock, knocking)
            self._shared.timers.after(self.wait_s * SECOND_AFTER, self._send_again, knock, knocking)

    def _send(self, knock: Knock, knocking: _Knocking) -> None:
        knocking.outstanding += 1
        device = self._ports[knock.local_nic].device
        endpoint = self._shared.endpoint(knock.rank, knock.remote_nic)

        def answered(answer: Answer) -> None:
            self._answered(knock, knocking, _MEANING[answer])

        knocking.probes.append(device.reach(knock.rank, knock.remote_nic, endpoint, self.wait_s, answered))

    def _send_again(self, knock: Knock, knocking: _Knocking) -> None:
        if self._out.get(knock) is knocking:
            self._send(knock, knocking)

    def _answered(self, knock: Knock, knocking: _Knocking, said: Said) -> None:
        knocking.outstanding -= 1
        knocking.worst = min(knocking.worst, said)
        if said.is_sign:
            self._end(knock, knocking, said)
        elif len(knocking.probes) == 2 and not knocking.outstanding:
            self._end(knock, knocking, knocking.worst)

    def _end(self, knock: Knock, knocking: _Knocking, said: Said) -> None:
        del self._out[knock]
        for probe in knocking.probes:
            probe.abort()
        while self._waiting and len(self._out) < AT_ONCE_MAX:
            self.knock(*self._waiting.popleft())
        for heard in knocking.heard:
            heard(said)
