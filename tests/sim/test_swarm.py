"""The swarm finds nothing wrong with the subject, repeats itself exactly, and does find what is broken on purpose."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from r2ccl import reduction
from r2ccl.actors.channels import Channels
from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.courier import Courier
from r2ccl.actors.failing import Failing
from r2ccl.actors.operation import Operation, ScratchPool
from r2ccl.actors.runtime import Runtime
from r2ccl.communicator import Communicator
from r2ccl.planner import memory
from r2ccl.protocol.collective import CollectiveMachine
from r2ccl.protocol.ledger import Ledger, Offer
from r2ccl.protocol.liveness import PeerLiveness
from r2ccl.protocol.outbox import Outbox
from r2ccl.reduction import Op
from r2ccl.sim import swarm, trial
from r2ccl.sim.calls import Kind
from r2ccl.sim.faults import FaultKind, Promise
from r2ccl.sim.injector import Injector
from r2ccl.sim.scenario import Scenario, draw
from r2ccl.sim.swarm import judge


def seeds_where(fits: Callable[[Scenario], bool], count: int) -> list[Scenario]:
    """The first small scenarios that fit, so that these tests don't depend on what a single seed draws."""
    small = (scenario for scenario in map(draw, range(400)) if scenario.shape.ranks <= 4 and fits(scenario))
    return [scenario for scenario, _ in zip(small, range(count), strict=False)]


def has(kind: FaultKind) -> Callable[[Scenario], bool]:
    return lambda scenario: any(fault.kind is kind for fault in scenario.faults)


def complains(of: str, scenarios: list[Scenario]) -> bool:
    """Does any of these scenarios lead to a complaint with this text?"""
    found = any(of in text for scenario in scenarios for text in trial.run(scenario).complaints)
    gc.collect()  # what a broken world left behind must not speak up in the next
    return found


# Nothing is wrong.


@pytest.mark.parametrize("seed", range(12))
def test_a_seed_is_green(seed: int) -> None:
    verdict = judge(seed)
    assert verdict.is_green, swarm.report(verdict, one_sided=False)
    assert verdict.chunks > 0


@pytest.mark.parametrize("promise", Promise)
def test_worlds_of_every_promise_do_what_it_is_about(promise: Promise) -> None:
    # Who comes late to a call that does not wait for it fails nobody.
    worlds = 3 if promise is Promise.LATE else 1
    outcomes = [trial.run(s) for s in seeds_where(lambda s: s.promise is promise and len(s.faults) > 1, worlds)]
    assert all(outcome.complaints == () for outcome in outcomes)
    assert any(outcome.ended_badly for outcome in outcomes) is promise.ends_badly
    if promise not in (Promise.PATHS, Promise.LATE):
        assert outcomes[0].failovers > 0


def test_another_process_with_another_hash_seed_takes_the_same_steps() -> None:
    here = {seed: trial.run(draw(seed)).digest for seed in range(3)}
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-m", "r2ccl.sim.swarm", "--seeds", "3", "--jobs", "1", "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        worlds = json.loads(told.stdout)["worlds"]
        assert {world["seed"]: world["digest"] for world in worlds} == here


def test_different_seeds_take_different_steps() -> None:
    assert len({trial.run(draw(seed)).digest for seed in range(6)}) == 6


# The command.


def test_the_command_reports_green_worlds_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert swarm.main(["--seeds", "4", "--first", "3", "--jobs", "2", "--verbose"]) == 0
    told = capsys.readouterr().out
    assert [f"seed {seed} ok" in told for seed in (3, 4, 5, 6)] == [True] * 4
    assert "4 worlds, all green" in told


def test_a_failing_seed_prints_its_story_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Operation, "apply", lambda *_: None)
    assert swarm.main(["--seeds", "3", "--first", "7", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert "seed 7 FAILED" in told
    assert "elements are wrong" in told
    assert "rank 0, the last" in told
    command = next(line for line in told.splitlines() if line.startswith("replay: "))
    assert command.endswith("-m r2ccl.sim.swarm --seed 7 --verbose")
    assert swarm.main(command.partition("swarm ")[2].split()) == 1
    assert "COMPLAINT" in capsys.readouterr().out


def test_a_second_run_that_takes_other_steps_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    run, runs = trial.run, list[int]()

    def other_each_time(scenario: Scenario, echo: Callable[[str], None] | None = None) -> trial.Outcome:
        runs.append(scenario.seed)
        return dataclasses.replace(run(scenario, echo), digest=str(len(runs)))

    monkeypatch.setattr(trial, "run", other_each_time)
    assert any("a second run took other steps" in text for text in judge(0).complaints)


def test_other_bits_than_in_an_unharmed_world_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trial.run

    def other_bits_unharmed(scenario: Scenario, echo: Callable[[str], None] | None = None) -> trial.Outcome:
        outcome = run(scenario, echo)
        return (
            outcome
            if scenario.faults
            else dataclasses.replace(
                outcome, results={name: (0, "other") for name in outcome.results if name[:2] == (0, 1)}
            )
        )

    monkeypatch.setattr(trial, "run", other_bits_unharmed)
    assert any("communicator 0 call 1.0 has other bits" in text for text in judge(1).complaints)


def test_rounding_is_compared_only_where_both_worlds_reduced_by_the_same_plan() -> None:
    # In this world a product of complex numbers was planned anew, and reduced in another order.
    assert judge(706).is_green


def test_a_node_whose_wires_corrupt_has_checksums() -> None:
    assert judge(469).is_green


def test_who_is_heard_and_hears_nothing_gives_up_too() -> None:
    # The one path that was left had a closed window when it died: nothing was in flight there, for ever.
    assert judge(2280).is_green


def test_what_came_spoiled_is_written_again_once_though_it_is_asked_for_twice() -> None:
    # A path to the sender changed, so the request was said again while the other copy was on its way. Memory that is
    # written one-sided has no second copy to choose from: the third was written over what had been used, and spoiled.
    assert judge(4253).is_green


# What is broken on purpose is found.


def test_a_ledger_that_forgets_duplicates_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Ledger.accept
    monkeypatch.setattr(Ledger, "accept", lambda *arguments: (True, accept(*arguments)[1]))
    monkeypatch.setattr(Ledger, "offer", lambda *_: Offer.FIRST)
    assert complains("came twice", seeds_where(has(FaultKind.SILENT_NIC), 20))


def test_a_courier_that_drops_what_is_resent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Courier.put

    def drop_resent(self: Courier, lane: Any, parcel: Any) -> None:
        if parcel.times_sent:
            lane.put(parcel, 0.0)
        else:
            put(self, lane, parcel)

    monkeypatch.setattr(Courier, "put", drop_resent)
    assert complains("does not end", seeds_where(has(FaultKind.CUT), 6))


def test_a_spoiled_chunk_that_nobody_asks_for_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Courier, "resend", lambda *_: None)
    assert complains("does not end", seeds_where(has(FaultKind.CORRUPT), 12))


def test_one_wrong_bit_on_one_rank_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Operation.apply

    def one_bit_off(operation: Operation, receive: int, chunk: int, data: Any) -> None:
        apply(operation, receive, chunk, data)
        if operation.owner.shared.rank == 1 and operation.arrays[0].count > 3:
            operation.arrays[0].array.view(np.uint8)[0] ^= 1

    monkeypatch.setattr(Operation, "apply", one_bit_off)
    assert complains("elements are wrong", seeds_where(lambda s: True, 2))


def test_credit_that_is_not_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox, "_fits_credit", lambda *_: True)
    tight = seeds_where(lambda s: s.shape.settings.credit_bytes == s.shape.settings.chunk_bytes, 12)
    assert complains("of at most", tight)


def test_scratch_memory_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScratchPool, "give", lambda *_: None)
    assert complains("scratch pieces", seeds_where(lambda s: s.shape.model.small_bytes == 0, 2))


def test_a_dead_peer_that_is_never_declared_dead_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerLiveness, "refused", lambda _: [])
    monkeypatch.setattr(PeerLiveness, "timer_fired", lambda *_: [])
    assert complains("does not end", seeds_where(lambda s: s.promise is Promise.KILLED, 2))


def test_a_failure_that_is_told_to_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "_tell_untold", lambda _: None)
    # With relays each rank notices by itself who is lost, but not what is kept there for it.
    lost = [s for s in map(draw, range(100)) if s.promise in (Promise.LATE, Promise.SPLIT) and s.shape.ranks > 2]
    assert complains("unsolicited bytes", lost)


def test_links_that_are_given_up_for_good_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r2ccl.protocol.nic_session.NicSession._dial", lambda _: [])
    monkeypatch.setattr("r2ccl.protocol.nic_session.NicSession._wanted", _first_dial)
    assert complains("did not come back", seeds_where(has(FaultKind.CUT), 3))


def _first_dial(session: Any) -> list[Any]:
    from r2ccl.protocol.nic_session import LinkState
    from r2ccl.protocol.session_events import Dial

    if session.state is not LinkState.ABSENT or not session.dialler:
        return []
    session.state = LinkState.DIALLING
    return [Dial(), session._arm(session.times.dial_timeout_s)]


def test_what_a_runtime_leaves_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    abort = Runtime.abort

    def forgets_a_port(self: Runtime) -> None:
        forgotten = self.all_ports.pop(0)
        abort(self)
        self.all_ports.insert(0, forgotten)

    monkeypatch.setattr(Runtime, "abort", forgets_a_port)
    # Where rails are joined, links across them end at the port that was not forgotten, and so both ends hear of it.
    apart = seeds_where(lambda s: s.promise is Promise.PATHS and s.shape.model.rails_apart, 1)
    assert complains("is open", apart)


def test_an_actor_that_fails_is_noticed_though_it_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("r2ccl.actors.health_monitor.HealthMonitor._own_nic", broken)
    assert complains("broken on purpose", seeds_where(has(FaultKind.CUT), 1))


def test_a_fault_that_breaks_its_promise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Injector, "_end", lambda *_: None)
    assert complains("failed though", seeds_where(lambda s: s.promise is Promise.OUTAGE, 4))


def calls(*kinds: Kind) -> Callable[[Scenario], bool]:
    return lambda s: any(call.kind in kinds for group in s.groups for call in group.calls)


def averages(scenario: Scenario) -> bool:
    every = [call for group in scenario.groups if len(group.members) > 1 for call in group.calls]
    return any(call.op is Op.AVERAGE and call.exact and call.count > 100 for call in every)


def test_an_average_that_is_divided_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    divide = reduction._divide
    monkeypatch.setattr(reduction, "_divide", lambda result, ranks: divide(result, ranks * ranks))
    assert complains("elements are wrong", seeds_where(averages, 3))


def test_a_memory_plan_that_reads_a_received_instead_of_an_initial_value_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_of_it(self: Any, after: Any) -> int:
        return (1 << len(self._before)) - 1

    monkeypatch.setattr(memory._Writes, "over", all_of_it)
    assert complains("elements are wrong", seeds_where(calls(Kind.REDUCE_SCATTER, Kind.REDUCE), 4))


def test_an_input_that_is_used_as_work_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Operation.apply

    def into_the_input(operation: Operation, receive: int, chunk: int, data: Any) -> None:
        apply(operation, receive, chunk, data)
        if operation.planned.call.startswith("reduce_scatter"):
            operation.arrays[1].bytes[:1] = b"X"

    monkeypatch.setattr(Operation, "apply", into_the_input)
    assert complains("only read", seeds_where(calls(Kind.REDUCE_SCATTER), 6))


def test_an_operation_that_ends_while_its_memory_is_still_to_be_sent_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CollectiveMachine, "is_complete", property(lambda self: self.chunks_left == 0))
    monkeypatch.setattr(Outbox, "settle_operation", lambda *_: [])
    two_sided = seeds_where(lambda s: not s.shape.one_sided and calls(Kind.BROADCAST, Kind.SCATTER)(s), 10)
    assert complains("elements are wrong", two_sided)


def test_a_receive_that_overtakes_one_that_takes_any_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    source_for = Channels._source_for

    def without_waiting(self: Channels, call: Any, tag: int) -> int | None:
        return source_for(self, call, tag) if call.source is None else call.source

    monkeypatch.setattr(Channels, "_source_for", without_waiting)
    assert complains("message", seeds_where(calls(Kind.MESSAGES), 30))


def test_messages_that_are_given_to_the_latest_receive_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    match = Channels._match

    def latest_first(self: Channels, tag: int) -> None:
        if tag in self._pending:
            self._pending[tag].reverse()
        match(self, tag)

    monkeypatch.setattr(Channels, "_match", latest_first)
    assert complains("message", seeds_where(calls(Kind.MESSAGES), 20))


def test_a_channel_whose_failure_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "fail_with", lambda *_: None)
    lost = seeds_where(lambda s: s.promise.loses_a_peer and s.shape.ranks > 2 and calls(Kind.MESSAGES)(s), 20)
    assert complains("does not end", lost)


def test_a_group_whose_ranks_are_out_of_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Communicator._group

    def by_rank(self: Communicator, members: tuple[int, ...], operation: int, color: int) -> Communicator:
        return group(self, tuple(sorted(members)), operation, color)

    monkeypatch.setattr(Communicator, "_group", by_rank)
    assert complains("is <Communicator", seeds_where(calls(Kind.SPLIT), 6))


def test_a_barrier_that_waits_for_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Coordinator.submit

    def no_barrier(self: Coordinator, planned: Any, arrays: Any, work: Any, timeout_s: float) -> None:
        if planned.call == "barrier()":
            work.finish(None)
        else:
            submit(self, planned, arrays, work, timeout_s)

    monkeypatch.setattr(Coordinator, "submit", no_barrier)
    assert complains("before all had called it", seeds_where(calls(Kind.BARRIER), 3))


def test_memory_that_is_written_after_its_operation_is_over_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Failing.ended

    def once_more(self: Failing, operation: Any) -> None:
        ended(self, operation)
        if operation.planned.call.startswith("recv") and operation.arrays[0].count:
            self._timers.after(0.01, operation.arrays[0].bytes.__setitem__, 0, 1)

    monkeypatch.setattr(Failing, "ended", once_more)
    assert complains("after it had been given back", seeds_where(calls(Kind.MESSAGES), 3))
