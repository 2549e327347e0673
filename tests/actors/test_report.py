"""What a rank tells about itself: its start table, its statistics, and the lines about its NICs, links and lanes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from r2ccl.actors.link_log import record_down
from r2ccl.actors.report import moment, ranges, start_table
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from tests.simulated import simulate, together


@dataclass
class Runs:
    turn: int


@dataclass
class Numbers:
    next_operation: int = 0
    running: dict[int, Runs] = field(default_factory=dict)
    waiting: tuple[int, ...] = ()
    epoch: int = 0


def test_before_the_first_call_there_is_no_operation() -> None:
    assert moment({}) == moment({5: Numbers()}) == {"epoch": 0, "op": "none"}


def test_the_operation_is_the_one_that_started_first_of_those_that_run() -> None:
    assert moment({5: Numbers(414, {412: Runs(3), 413: Runs(4)}, epoch=7)}) == {"epoch": 7, "op": 412}


def test_while_none_runs_it_is_the_last_one_called() -> None:
    assert moment({5: Numbers(413, epoch=7)}) == {"epoch": 7, "op": 412}


def test_where_there_are_several_communicators_the_one_meant_is_named() -> None:
    several = {0xA: Numbers(9, {8: Runs(5)}), 0xB: Numbers(3, {2: Runs(4)}, epoch=1)}
    assert moment(several) == {"epoch": 1, "op": 2, "communicator": "b"}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1], "0, 1"), ([0, 1, 2, 3, 9], "0-3, 9"), ([1, 1, 2, 4, 5, 6], "1, 2, 4-6")],
)
def test_runs_of_ranks_are_told_as_one(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_the_start_table_says_for_each_nic_what_it_is_and_whom_it_reaches() -> None:
    async def story(world: World) -> None:
        for peer in (2, 3):
            world.fabric.cut((peer, 1))
        await asyncio.sleep(0.01)
        text = start_table(world.runtimes[0], [("docker0", "a bridge"), ("lo", "loopback")])
        assert text.splitlines() == [
            "NICs of rank 0 of 4, node node0:",
            "  NIC   device  address       speed    MTU   share    reaches ranks",
            "  nic0  nic0    rank0.nic0:1  unknown  1500  carries  1-3",
            "  nic1  nic1    rank0.nic1:2  unknown  1500  carries  1",
            "  left out: docker0: a bridge",
            "  left out: lo: loopback",
        ]

    simulate(story, ranks=4)


def test_lanes_over_one_nic_are_told_as_such() -> None:
    async def story(world: World) -> None:
        ports = world.runtimes[0].ports
        ports[1].nic = dataclasses.replace(ports[0].nic, index=1)
        rows = start_table(world.runtimes[0], []).splitlines()[2:]
        assert [row[:25] for row in rows] == ["  nic0  nic0, lane 1 of 2", "  nic1  nic0, lane 2 of 2"]
        told = world.communicators[0].stats()["nics"]
        assert [nic["shares_device_with"] for nic in told.values()] == [["nic1"], ["nic0"]]
        told = world.communicators[1].stats()["nics"]
        assert [nic["shares_device_with"] for nic in told.values()] == [[], []]

    simulate(story)


def test_statistics_say_which_links_are_backups() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(0.1)
        links = world.communicators[0].stats()["links"]
        assert {name: link["backup"] for name, link in links.items()} == {
            "nic0->rank1.nic0": False,
            "nic0->rank1.nic1": True,
            "nic1->rank1.nic1": False,
        }

    simulate(story, backup_paths=1)


def test_statistics_of_a_quiet_job_are_noughts_and_unknowns() -> None:
    async def story(world: World) -> None:
        told = world.communicators[1].stats()
        assert json.loads(json.dumps(told)) == told
        assert (told["rank"], told["size"], told["epoch"]) == (1, 2, 0)
        assert told["ccl_retransmit_ratio"] == 0.0
        assert list(told["nics"]) == ["nic0", "nic1"]
        assert list(told["peers"]) == ["rank0"]
        nic, peer = told["nics"]["nic1"], told["peers"]["rank0"]
        assert (nic["device"], nic["address"], nic["state"], nic["spare"]) == ("nic1", "rank1.nic1:4", "up", False)
        assert (nic["sent_bytes"], nic["bandwidth_bytes_s"], nic["ccl_retransmit_ratio"]) == (0, None, 0.0)
        assert (peer["state"], peer["links_up"], peer["bandwidth_bytes_s"]) == ("alive", 2, None)
        assert nic["rtt_s"] > 0
        assert peer["rtt_s"] == min(link["rtt_s"] for link in told["links"].values())

    simulate(story)


def test_statistics_show_what_a_lost_nic_cost_and_on_whose_account() -> None:
    async def story(world: World) -> None:
        buffers = [np.ones(4 << 20, np.uint32) for _ in range(2)]
        works = [c.all_reduce(x) for c, x in zip(world.communicators, buffers, strict=True)]
        await asyncio.sleep(0.003)
        world.fabric.cut((1, 0))
        for work in works:
            await work
        told = world.communicators[0].stats()
        assert json.loads(json.dumps(told)) == told
        total, nics, peer = told["counters"]["total"], told["nics"], told["peers"]["rank1"]
        assert total["resent_bytes"] > 0
        assert told["ccl_retransmit_ratio"] == total["resent_bytes"] / total["sent_bytes"]
        assert 0 < told["ccl_retransmit_ratio"] < 1
        # What went out again did so on the NIC that is left.
        assert nics["nic0"]["ccl_retransmit_ratio"] == 0.0
        assert nics["nic1"]["ccl_retransmit_ratio"] == nics["nic1"]["resent_bytes"] / nics["nic1"]["sent_bytes"] > 0
        assert peer["resent_chunks"] == nics["nic1"]["resent_chunks"] == total["resent_chunks"]
        assert peer["links_up"] == 1
        assert peer["bandwidth_bytes_s"] == nics["nic1"]["bandwidth_bytes_s"] > 0
        assert (nics["nic0"]["state"], nics["nic0"]["rtt_s"]) == ("up", None)
        assert told["links"]["nic0->rank1.nic0"]["state"] == "down"
        assert world.communicators[1].stats()["nics"]["nic0"]["state"] == "down"

    simulate(story)


def test_statistics_can_be_read_after_the_end() -> None:
    async def story(world: World) -> None:
        await together(world, lambda c: c.barrier())
        await world.close()
        told = world.communicators[0].stats()
        assert told["counters"]["total"]["sent_chunks"] > 0
        assert told["links"] == {}
        assert told["peers"]["rank1"]["state"] == "left"

    simulate(story)


def test_each_change_of_state_is_one_line_with_cause_epoch_and_operation(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        await together(world, lambda c: c.barrier())
        buffers = [np.ones(1 << 20, np.uint32) for _ in range(2)]
        works = [c.all_reduce(x) for c, x in zip(world.communicators, buffers, strict=True)]
        await asyncio.sleep(0.001)
        world.fabric.cut((1, 0))
        for work in works:
            await work
        world.fabric.restore((1, 0))
        await asyncio.sleep(2.0)

    with caplog.at_level(logging.INFO, logger="r2ccl"):
        simulate(story)
    lines = {record.getMessage(): record.levelno for record in caplog.records}
    assert lines["nic=nic0 UP->DOWN cause=carrier epoch=0 op=1"] == logging.WARNING
    assert lines["link=nic0->rank0.nic0 UP->DOWN cause=carrier epoch=0 op=1"] == logging.WARNING
    assert lines['link=nic0->rank1.nic0 UP->DOWN cause="rank 1 nic0 is down" epoch=0 op=1'] == logging.WARNING
    assert lines["nic=nic0 DOWN->UP cause=carrier epoch=0 op=1"] == logging.INFO
    assert lines["link=nic0->rank0.nic0 ABSENT->UP cause=connected epoch=0 op=none"] == logging.INFO
    assert lines["link=nic0->rank0.nic0 DOWN->UP cause=readmitted epoch=0 op=1"] == logging.INFO
    assert any(re.match(r"lane_dissolved lane=0 peer=0 BOUND->DISSOLVED cause=carrier epoch=0 op=1 ", x) for x in lines)
    assert any(re.match(r'lane_bound lane=0 peer=0 DISSOLVED->BOUND cause="link up" epoch=0 op=1 ', x) for x in lines)


@pytest.mark.parametrize(
    ("cause", "level"),
    [
        ("silence", logging.WARNING),
        ("reset", logging.WARNING),
        ("peer left", logging.INFO),
        ("a buffer was given back", logging.INFO),
    ],
)
def test_a_link_that_ends_without_a_fault_of_the_path_is_no_warning(
    caplog: pytest.LogCaptureFixture, cause: str, level: int
) -> None:
    async def story(world: World) -> None:
        (link, *_) = world.runtimes[0].ports[0].links.values()
        record_down(world.runtimes[0].shared.events, link, cause)

    with caplog.at_level(logging.INFO, logger="r2ccl"):
        simulate(story)
    told = [record for record in caplog.records if "UP->DOWN" in record.getMessage()]
    assert [record.levelno for record in told] == [level]


def test_the_steps_in_between_are_told_to_who_wants_to_trace_them(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.fabric.cut((1, 0))
        await asyncio.sleep(0.001)
        world.fabric.restore((1, 0))
        await asyncio.sleep(2.0)

    with caplog.at_level(logging.DEBUG, logger="r2ccl"):
        simulate(story)
    traces = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert any(line.startswith("session link=nic0->rank1.nic0 ABSENT->DIALLING cause=Wanted") for line in traces)
    assert any(line.startswith("session link=nic0->rank1.nic0 PROBATION->UP") for line in traces)


def test_a_spare_is_told_as_one() -> None:
    async def story(world: World) -> None:
        assert world.communicators[0].stats()["nics"]["nic1"]["spare"] is True
        assert "nic1  nic1    rank0.nic1:2  unknown  1500  spare    1" in start_table(world.runtimes[0], ())

    async def main() -> None:
        world = World(Shape(2, 1, 1))
        await world.start()
        await story(world)
        await world.close()

    run(main())
