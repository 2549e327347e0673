"""What must be true of a whole world in the end. Each answers with what is not, in words; nothing to say is good."""

from __future__ import annotations

from collections.abc import Mapping

from r2ccl.communicator import Communicator
from r2ccl.sim.checkers import kept, missing_links
from r2ccl.sim.injector import Injector
from r2ccl.sim.scenario import Scenario
from r2ccl.sim.world import World


class Truths:
    """Of one trial. ``handles``: by rank in the job and number, the rank's communicators, also those to come."""

    def __init__(
        self, scenario: Scenario, world: World, injector: Injector, handles: Mapping[tuple[int, int], Communicator]
    ) -> None:
        self._scenario = scenario
        self._world = world
        self._injector = injector
        self._handles = handles

    def ignorant(self) -> list[str]:
        """Every communicator of a lost rank must have failed at every survivor, also one with nothing to do; and with
        it its channels and whatever else hangs on it."""
        return [
            f"rank {rank} communicator {number}, {coordinator.name}, never heard that a rank was lost"
            for (rank, number), handle in sorted(self._handles.items())
            if rank not in self._injector.dead and self._scenario.loses_a_member(number) and not handle._is_closed
            for coordinator in handle._own_coordinators()
            if handle._ends_job is (handle._coordinator is coordinator) and coordinator.failing.error is None
        ]

    def missing(self) -> list[str]:
        """All links of the plan must be up again, and every lane must have one."""
        return [text for runtime in self._world.runtimes for text in missing_links(runtime)]

    def disagreed(self) -> list[str]:
        """All members of a communicator must be in one epoch, and none must wait for another."""
        states: dict[int, set[tuple[int, bool]]] = {}
        for (_, number), handle in self._handles.items():
            if not handle._is_closed:
                states.setdefault(number, set()).add((handle.epoch, handle._epochs.waiting is not None))
        return [
            f"communicator {number} does not agree: (epoch, is any waited for) of its ranks is {sorted(told)}"
            for number, told in sorted(states.items())
            if len(told) > 1 or any(waits for _, waits in told)
        ]

    def kept(self) -> list[str]:
        """Everything must be acknowledged, and nothing may be kept."""
        return [
            text
            for rank, runtime in enumerate(self._world.runtimes)
            if rank not in self._injector.dead
            for text in kept(runtime)
        ]
