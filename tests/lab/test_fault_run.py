"""The life of a fault, with hands, watchdog and time that are made up: what is done and undone, in what order."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from r2ccl.errors import UsageError
from r2ccl.lab.fault_run import Ending, FaultNotDone, FaultNotUndone, Limits, record_of, records, run, write
from r2ccl.lab.fault_undo import Nft, Operation, Record, this_network
from r2ccl.lab.kernel_faults import Fault, Step
from r2ccl.protocol.fault_kinds import Kind, Request, request

NO_LIMITS = Limits()


@dataclass
class Scene:
    """Hands and watchdog in one, that write down what they are told."""

    directory: Path
    refuses: dict[str, int] = field(default_factory=dict)
    watchdog_starts: bool = True
    said: list[str] = field(default_factory=list)
    slept: list[float | None] = field(default_factory=list)
    #: What ends each wait, first come first served; then time does.
    reasons: list[str] = field(default_factory=list)

    def perform(self, operation: Operation) -> None:
        self.said.append(operation.shown)
        if operation.shown in self.refuses:
            raise OSError(self.refuses[operation.shown], "no")

    def start(self, record: Record) -> None:
        self.said.append("watch")
        assert [found.identity for found in records(self.directory)] == [record.identity]
        if not self.watchdog_starts:
            raise OSError(errno.ENOMEM, "no process")

    def done(self) -> None:
        self.said.append("watchdog: done")

    def stay(self) -> None:
        self.said.append("watchdog: stay")

    def leave(self) -> None:
        self.said.append("watchdog: leave")

    def wait(self, seconds: float | None) -> str:
        self.slept.append(seconds)
        reason = self.reasons.pop(0) if self.reasons else "over"
        if reason == "exception":
            raise KeyboardInterrupt
        return reason

    def play(self, asked: Request, limits: Limits = NO_LIMITS, steps: str = "ab", undo: bool = True) -> Ending:
        made = tuple(Step(Nft(f"+{name}", ""), (Nft(f"-{name}", ""),) if undo else ()) for name in steps)
        fault = Fault("cafe", asked, "eth7", None, made)
        record = record_of(fault, limits, this_network(), self.directory)
        return run(fault, limits, record, self, self, self.wait, self.said.append)

    @property
    def left(self) -> list[Record]:
        return list(records(self.directory))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


CUT = Request(Kind.SILENT_DROP)


def test_what_was_done_is_undone_in_reverse_and_the_watchdog_may_go(scene: Scene) -> None:
    assert scene.play(CUT, Limits(for_s=3.0)) is Ending.OVER
    assert scene.said == ["watch", "+a", "+b", "done", "-b", "-a", "watchdog: done", "undone"]
    assert scene.slept == [3.0]
    assert scene.left == []


@pytest.mark.parametrize(("reason", "ending"), [("signal", Ending.SIGNAL), ("watchdog", Ending.WATCHDOG)])
def test_whatever_ends_the_waiting_ends_the_fault(reason: str, ending: Ending, scene: Scene) -> None:
    scene.reasons = [reason]
    assert scene.play(CUT) is ending
    assert scene.said[-4:] == ["-b", "-a", "watchdog: done", "undone"]


def test_a_step_that_fails_in_the_middle_is_undone_with_those_before_it_and_no_other(scene: Scene) -> None:
    scene.refuses = {"+b": errno.EPERM}
    with pytest.raises(FaultNotDone, match=r"\+b: no"):
        scene.play(CUT, steps="abc")
    assert scene.said == ["watch", "+a", "+b", "-b", "-a", "watchdog: done", "undone"]
    assert scene.left == []


def test_nothing_is_done_when_nobody_watches(scene: Scene) -> None:
    scene.watchdog_starts = False
    with pytest.raises(OSError, match="no process"):
        scene.play(CUT)
    assert "+a" not in scene.said
    assert scene.left == []


def test_an_exception_while_waiting_is_no_reason_to_leave_a_fault(scene: Scene) -> None:
    scene.reasons = ["exception"]
    with pytest.raises(KeyboardInterrupt):
        scene.play(CUT)
    assert scene.said[-4:] == ["-b", "-a", "watchdog: done", "undone"]


def test_what_cannot_be_undone_is_left_to_the_watchdog_the_rest_is_undone_and_the_record_stays(scene: Scene) -> None:
    scene.refuses = {"-b": errno.EBUSY}
    with pytest.raises(FaultNotUndone, match="fault-inject undo cafe"):
        scene.play(CUT)
    assert scene.said[-3:] == ["-b", "-a", "watchdog: leave"]
    assert [record.identity for record in scene.left] == ["cafe"]


def test_a_fault_that_stays_is_not_undone_and_its_record_stays(scene: Scene) -> None:
    assert scene.play(CUT, Limits(stay=True)) is Ending.STAYS
    assert scene.said == ["watch", "+a", "+b", "done", "watchdog: stay"]
    assert [record.identity for record in scene.left] == ["cafe"]
    assert scene.slept == []


def test_a_fault_that_should_stay_and_fails_does_not_stay(scene: Scene) -> None:
    scene.refuses = {"+b": errno.EPERM}
    with pytest.raises(FaultNotDone):
        scene.play(CUT, Limits(stay=True))
    assert scene.said[-4:] == ["-b", "-a", "watchdog: done", "undone"]
    assert scene.left == []


def test_a_flap_does_and_undoes_by_turns(scene: Scene) -> None:
    flap = request(Kind.FLAP, flap_pattern="1s down, 1s down, 4s up", times=2)
    assert scene.play(flap, steps="a") is Ending.OVER
    assert scene.said == [
        "watch", *["+a", "down", "down", "-a", "up"] * 2, "watchdog: done", "undone",
    ]  # fmt: skip
    assert scene.slept == [1, 1, 4, 1, 1, 4]


def test_a_flap_that_is_interrupted_while_down_comes_up(scene: Scene) -> None:
    scene.reasons = ["over", "over", "signal"]
    assert scene.play(request(Kind.FLAP, flap_pattern="1s down, 4s up", times=9), steps="a") is Ending.SIGNAL
    assert scene.said[-5:] == ["+a", "down", "-a", "watchdog: done", "undone"]


def test_a_flap_ends_at_its_time_too(scene: Scene) -> None:
    scene.play(request(Kind.FLAP, flap_pattern="1s down, 4s up", times=9), Limits(for_s=5.5))
    assert scene.slept == [1, 4, 0.5]
    assert scene.said[-4:] == ["-b", "-a", "watchdog: done", "undone"]


def test_what_has_no_undo_needs_no_watchdog(scene: Scene) -> None:
    assert scene.play(Request(Kind.KILL), steps="a", undo=False) is Ending.OVER
    assert scene.said == ["+a", "done"]
    assert scene.left == []


def test_where_the_kernel_has_no_such_thing_the_way_out_is_said(scene: Scene) -> None:
    step = Step(Nft("+netem", ""), (Nft("-netem", ""),), if_absent="no netem: do it otherwise")
    fault = Fault("cafe", Request(Kind.DELAY, 0.005), "eth7", None, (step,))
    scene.refuses = {"+netem": errno.ENOENT}
    record = record_of(fault, NO_LIMITS, this_network(), scene.directory)
    with pytest.raises(FaultNotDone, match="do it otherwise"):
        run(fault, NO_LIMITS, record, scene, scene, scene.wait, scene.said.append)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    from r2ccl.lab.fault_undo import Netlink, Signal

    undo = (
        Netlink("ip link set eth7 up", ((16, 0, b"\x00\x01"), (24, 0x900, b"")), (17,)),
        Nft("nft delete", "delete table\n"),
        Signal("kill -CONT 7", 7, "1234", 18),
    )
    record = Record("cafe", "link-down on eth7", "/proc/7/ns/net", "boot net:[1]", undo, 12.5, str(tmp_path / "x"))
    assert Record.load(record.dump()) == record
    assert "\n" not in record.dump()


def test_records_are_whole_or_not_there_and_those_of_another_boot_are_forgotten(tmp_path: Path) -> None:
    here = record_of(Fault("cafe", CUT, "eth7", None, ()), NO_LIMITS, this_network(), tmp_path)
    before = record_of(Fault("dead", CUT, "eth7", None, ()), NO_LIMITS, "another-boot net:[1]", tmp_path)
    elsewhere = record_of(Fault("beef", CUT, "h0", "/proc/0/ns/net", ()), NO_LIMITS, this_network(), tmp_path)
    for record in (here, before, elsewhere):
        write(record)
    (tmp_path / "faults" / "half.draft").write_text('{"ident')
    assert list(records(tmp_path)) == [here]
    assert [path.name for path in (tmp_path / "faults").glob("*.json")] == ["cafe.json"]


def test_a_record_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "cafe.json").write_text("")
    with pytest.raises(UsageError, match=r"cafe\.json is no record of a fault .*remove it"):
        list(records(tmp_path))
