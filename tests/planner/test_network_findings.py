"""What is wrong with a network: each cause is found, told once, and weighed."""

from __future__ import annotations

import dataclasses

import pytest

from r2ccl.planner.network_findings import findings, nic_states, symmetric_rails
from r2ccl.planner.network_picture import ClockOffset, Outcome, Pair, PathMtu, Picture, Rate, Reach
from r2ccl.planner.network_remarks import Finding, Kind
from r2ccl.planner.survival import survival
from tests.planner.pictures import healthy, hosts_with, on_rails, picture_of, with_nic, without_nic


def found(picture: Picture) -> list[Finding]:
    return findings(picture, survival(picture))


def problems(picture: Picture) -> list[Kind]:
    return [each.kind for each in found(picture) if each.is_problem]


def notes(picture: Picture) -> list[Kind]:
    return [each.kind for each in found(picture) if not each.is_problem]


def text_of(picture: Picture, kind: Kind) -> str:
    (each,) = [each for each in found(picture) if each.kind is kind]
    return each.text


def with_outcome(picture: Picture, pair: Pair, outcome: Outcome, detail: str = "") -> Picture:
    reaches = tuple(Reach(pair, outcome, detail) if reach.pair == pair else reach for reach in picture.reaches)
    return dataclasses.replace(picture, reaches=reaches)


def with_mtu(picture: Picture, pair: Pair, path_bytes: int, told: bool = False) -> Picture:
    mtus = tuple(PathMtu(pair, path_bytes, told) if mtu.pair == pair else mtu for mtu in picture.mtus)
    return dataclasses.replace(picture, mtus=mtus)


@pytest.mark.parametrize(("hosts", "nics"), [(1, 1), (1, 2), (2, 2), (3, 2), (8, 4)])
def test_nothing_is_wrong_with_a_healthy_network(hosts: int, nics: int) -> None:
    assert problems(healthy(hosts, nics)) == []
    assert Kind.SINGLE_NIC not in notes(healthy(hosts, nics)) or nics == 1


def test_hosts_with_a_single_nic_are_fine_and_told_what_they_do_not_survive() -> None:
    picture = healthy(nics=1)
    assert problems(picture) == []
    assert notes(picture) == [Kind.SINGLE_NIC] * 3


def test_an_address_that_two_hosts_have_is_a_problem() -> None:
    picture = with_nic(healthy(), 2, 1, address="10.200.1.2")
    assert Kind.DUPLICATE_ADDRESS in problems(picture)
    assert text_of(picture, Kind.DUPLICATE_ADDRESS).startswith(
        "rank 1 nic1 (eth1) and rank 2 nic1 (eth1) both have the address 10.200.1.2: "
    )


def test_a_hardware_address_that_two_hosts_have_is_a_problem_and_that_of_loopback_is_none() -> None:
    mac = healthy().nic(0, 0).mac
    assert Kind.DUPLICATE_MAC in problems(with_nic(healthy(), 1, 0, mac=mac))
    picture = healthy()
    for rank in range(3):
        for nic in range(2):
            picture = with_nic(picture, rank, nic, mac="00:00:00:00:00:00" if nic else "")
    assert problems(picture) == []


def test_ranks_of_one_node_may_have_the_same_address() -> None:
    hosts = hosts_with([2, 2, 2])
    twin = dataclasses.replace(hosts[0], rank=1)
    assert problems(picture_of((hosts[0], twin, hosts[2]), on_rails)) == []
    picture = healthy(hosts=2, nics=1)
    for rank in range(2):
        picture = with_nic(picture, rank, 0, name="lo", address="127.0.0.1")
    assert problems(picture_of(tuple(dataclasses.replace(host, node="one") for host in picture.hosts))) == []


def test_a_nic_that_is_down_is_told_once_and_not_whom_it_does_not_reach() -> None:
    picture = without_nic(healthy(), 1, 1, up=False)
    assert [kind for kind in problems(picture) if kind is not Kind.NOT_SURVIVED] == [Kind.NIC_DOWN]
    assert text_of(picture, Kind.NIC_DOWN).startswith("rank 1 nic1 (eth1) is down or has no carrier")
    assert symmetric_rails(picture) == {0: True, 1: False}


def test_a_nic_that_is_down_is_told_also_where_there_is_nobody_to_reach() -> None:
    assert problems(with_nic(healthy(hosts=1), 0, 1, up=False)) == [Kind.NIC_DOWN]


def test_a_nic_that_reaches_nobody_is_told_once() -> None:
    picture = without_nic(healthy(), 1, 1)
    assert [kind for kind in problems(picture) if kind is not Kind.NOT_SURVIVED] == [Kind.NIC_ALONE]
    assert {key for key, state in nic_states(picture).items() if state.name == "ALONE"} == {(1, 1)}


def test_the_loss_of_the_last_nic_that_works_is_a_problem_where_there_were_two() -> None:
    # And the rail of that NIC is not told besides.
    assert text_of(without_nic(healthy(), 1, 1), Kind.NOT_SURVIVED) == (
        "loss of rank 1 nic0 (eth0) is not survived: because rank 0 reaches rank 1, rank 1 reaches rank 2 only by it"
    )


def test_the_loss_of_a_rail_is_a_problem_where_that_of_each_of_its_nics_is_none() -> None:
    # Rail 1 joins 0 with 1 and 2 with 3. Whoever loses NIC 0 is relayed by its neighbour.
    def two_by_two(pair: Pair) -> bool:
        return on_rails(pair) and (pair.source_nic == 0 or pair.source // 2 == pair.target // 2)

    picture = picture_of(hosts_with([2, 2, 2, 2]), two_by_two)
    assert text_of(picture, Kind.NOT_SURVIVED).startswith("loss of rail 0 (nic0 of all ranks) is not survived: ")


def test_nics_in_another_order_are_recognized() -> None:
    def swapped(pair: Pair) -> bool:
        wires = [nic ^ (rank == 2) for rank, nic in ((pair.source, pair.source_nic), (pair.target, pair.target_nic))]
        return wires[0] == wires[1]

    picture = picture_of(hosts_with([2, 2, 2]), swapped)
    texts = [each.text for each in found(picture) if each.kind is Kind.NIC_ALONE]
    assert len(texts) == 2
    assert "rank 2 nic0 (eth0) reaches no NIC of its rail, and none reaches it; it reaches nic1 of others" in texts[0]
    assert "R2CCL_NICS" in texts[0]


def test_a_pair_that_works_one_way_is_told_with_why() -> None:
    picture = with_outcome(healthy(), Pair(0, 1, 2, 1), Outcome.REFUSED, "Connection refused")
    assert problems(picture)[0] is Kind.ONE_WAY
    assert text_of(picture, Kind.ONE_WAY) == (
        "rank 0 nic1 (eth1) does not reach rank 2 nic1 (eth1) (refused: Connection refused), which reaches it: "
        "a firewall, or a route"
    )


def test_a_nic_that_others_reach_is_not_alone_though_it_reaches_nobody() -> None:
    picture = picture_of(
        hosts_with([2, 2, 2]), lambda pair: on_rails(pair) and (pair.source, pair.source_nic) != (1, 1)
    )
    assert problems(picture)[:2] == [Kind.ONE_WAY, Kind.ONE_WAY]
    assert Kind.NIC_ALONE not in problems(picture)


def test_a_stranger_in_the_place_of_a_rails_nic_is_not_told_as_a_broken_pair_besides() -> None:
    picture = with_outcome(healthy(), Pair(0, 1, 2, 1), Outcome.STRANGER, "it hung up")
    assert [kind for kind in problems(picture) if kind is not Kind.NOT_SURVIVED] == [Kind.STRANGER]


def test_a_pair_that_works_neither_way_is_told_once() -> None:
    pair = Pair(0, 1, 2, 1)
    picture = with_outcome(with_outcome(healthy(), pair, Outcome.SILENT), pair.back, Outcome.SILENT)
    assert [kind for kind in problems(picture) if kind is Kind.BROKEN_PAIR] == [Kind.BROKEN_PAIR]
    assert (
        text_of(picture, Kind.BROKEN_PAIR)
        == "rank 0 nic1 (eth1) and rank 2 nic1 (eth1) do not reach each other (silent)"
    )


def test_a_pair_across_rails_that_does_not_work_is_nothing_to_tell() -> None:
    assert all(reach.outcome is Outcome.SILENT for reach in healthy().reaches if not on_rails(reach.pair)), (
        "the sample has some"
    )
    assert found(healthy()) == []


def test_a_stranger_at_a_nics_address_is_a_problem_on_any_pair() -> None:
    pair = Pair(0, 0, 1, 1)
    picture = with_outcome(healthy(), pair, Outcome.STRANGER, "rank 2, NIC 1 listens there")
    assert problems(picture) == [Kind.STRANGER]
    assert text_of(picture, Kind.STRANGER) == (
        "at 10.200.1.2, the address of rank 1 nic1 (eth1), rank 0 nic0 (eth0) meets somebody else: "
        "rank 2, NIC 1 listens there"
    )


def test_two_ranks_without_any_path_are_named() -> None:
    picture = picture_of(hosts_with([2, 2, 2]), lambda pair: on_rails(pair) and {pair.source, pair.target} != {0, 2})
    assert "rank 0 and rank 2 have no link that works both ways" in text_of(picture, Kind.NO_PATH)


def test_large_packets_that_vanish_are_a_problem_with_both_values() -> None:
    picture = with_mtu(healthy(), Pair(0, 1, 2, 1), 1400)
    assert problems(picture) == [Kind.MTU_BLACK_HOLE]
    assert text_of(picture, Kind.MTU_BLACK_HOLE).startswith(
        "rank 0 nic1 (eth1) to rank 2 nic1 (eth1): interface MTU 1500, path MTU 1400: larger packets vanish without a "
        "word, so connects succeed and bulk stalls."
    )


def test_large_packets_that_are_said_to_be_too_large_are_a_note() -> None:
    picture = with_mtu(healthy(), Pair(0, 1, 2, 1), 1400, told=True)
    assert (problems(picture), notes(picture)) == ([], [Kind.MTU_REDUCED])


def test_pairs_with_the_same_path_mtu_are_told_together() -> None:
    picture = healthy(hosts=5)
    for mtu in picture.mtus:
        if mtu.pair.source_nic == 1:
            picture = with_mtu(picture, mtu.pair, 1400)
    assert problems(picture) == [Kind.MTU_BLACK_HOLE]
    text = text_of(picture, Kind.MTU_BLACK_HOLE)
    assert text.startswith("rank 0 nic1 (eth1) and rank 1 nic1 (eth1); ")
    assert "; and 6 more pairs: interface MTU 1500, path MTU 1400" in text


def test_of_two_directions_the_narrower_one_counts() -> None:
    picture = with_mtu(with_mtu(healthy(), Pair(0, 1, 2, 1), 1404), Pair(2, 1, 0, 1), 1400)
    assert problems(picture) == [Kind.MTU_BLACK_HOLE]
    assert text_of(picture, Kind.MTU_BLACK_HOLE).startswith(
        "rank 0 nic1 (eth1) and rank 2 nic1 (eth1): interface MTU 1500, path MTU 1400: "
    )


@pytest.mark.parametrize("hole", [Pair(0, 0, 1, 0), Pair(1, 0, 0, 0)])
def test_that_nothing_passes_a_black_hole_is_not_told_as_a_slow_nic_besides(hole: Pair) -> None:
    measured = tuple(Rate(Pair(rank, 0, (rank + 1) % 3, 0), 1e8 if rank else 0.0) for rank in range(3))
    picture = dataclasses.replace(healthy(), rates=measured)
    assert problems(picture) == [Kind.SLOW]
    assert problems(with_mtu(picture, hole, 1400)) == [Kind.MTU_BLACK_HOLE]
    assert problems(with_mtu(picture, hole, 1400, told=True)) == [Kind.SLOW], "that is no reason"


def test_a_path_that_answers_no_probe_is_a_note() -> None:
    picture = with_mtu(healthy(), Pair(0, 1, 2, 1), 0)
    assert (problems(picture), notes(picture)) == ([], [Kind.MTU_UNKNOWN])


def test_unlike_mtus_of_two_ends_are_a_note_as_long_as_the_smaller_one_passes() -> None:
    picture = with_nic(healthy(), 0, 0, mtu_bytes=9000)
    assert (problems(picture), notes(picture)) == ([], [Kind.UNLIKE_MTUS])
    jumbo = with_nic(with_nic(picture, 1, 0, mtu_bytes=9000), 2, 0, mtu_bytes=9000)
    assert problems(jumbo) == [Kind.MTU_BLACK_HOLE], "all ends take 9000 and 1500 pass"


def test_what_ip_cannot_say_is_not_missing() -> None:
    picture = healthy()
    for rank in range(3):
        for nic in range(2):
            picture = with_nic(picture, rank, nic, mtu_bytes=65536)
    mtus = tuple(PathMtu(mtu.pair, 65535) for mtu in picture.mtus)
    assert found(dataclasses.replace(picture, mtus=mtus)) == []


def test_two_nics_in_one_subnet_are_a_problem_only_where_they_answer_for_each_other() -> None:
    apart = with_nic(healthy(), 1, 1, address="10.200.0.77")
    assert (problems(apart), notes(apart)) == ([], [Kind.SHARED_SUBNET])
    together = with_nic(apart, 1, 0, answers_for_itself=False)
    assert problems(together) == [Kind.SHARED_SUBNET]
    assert "rank 1 (host1): eth0 (10.200.0.2) and eth1 (10.200.0.77) are in one subnet, 10.200.0.0/24" in text_of(
        together, Kind.SHARED_SUBNET
    )


def test_a_wider_subnet_that_holds_the_other_is_shared_too() -> None:
    assert Kind.SHARED_SUBNET in notes(with_nic(healthy(), 1, 1, prefix_length=8))


def test_several_addresses_of_one_device_and_unknown_prefixes_share_nothing() -> None:
    picture = with_nic(healthy(), 1, 1, address="10.200.0.77", name="eth0")
    assert Kind.SHARED_SUBNET not in [each.kind for each in found(picture)]
    assert found(with_nic(healthy(), 1, 1, address="10.200.0.77", prefix_length=0)) == []


def test_unlike_numbers_and_speeds_of_nics_are_notes() -> None:
    picture = picture_of(hosts_with([2, 2, 1]), lambda pair: True)
    assert Kind.UNLIKE_NICS in notes(picture)
    assert "rank 0 has 2, rank 1 has 2, rank 2 has 1" in text_of(picture, Kind.UNLIKE_NICS)
    assert problems(picture) == []
    slow = with_nic(healthy(), 1, 0, speed_mbit_s=1000)
    assert (problems(slow), notes(slow)) == ([], [Kind.UNLIKE_SPEEDS])
    assert found(with_nic(healthy(), 1, 0, speed_mbit_s=0)) == [], "not known is not unlike"


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((100.0, 100.0, 100.0), []),
        ((100.0, 90.0, 51.0), []),
        ((100.0, 90.0, 40.0), [(Kind.SLOW, False)]),
        ((100.0, 90.0, 20.0), [(Kind.SLOW, True)]),
        ((100.0, 90.0, 0.0), [(Kind.SLOW, True)]),
        ((100.0, 20.0), [(Kind.SLOW, True)]),
        ((100.0, 51.0), []),
        ((0.0, 0.0, 0.0), []),
    ],
)
def test_a_nic_far_below_its_rails_rate_is_found(rates: tuple[float, ...], expected: list[tuple[Kind, bool]]) -> None:
    size = len(rates)
    measured = tuple(Rate(Pair(rank, 0, (rank + 1) % size, 0), rate * 1e6) for rank, rate in enumerate(rates))
    picture = dataclasses.replace(healthy(size), rates=measured)
    assert [(each.kind, each.is_problem) for each in found(picture)] == expected


def test_a_clock_is_told_where_it_differs_by_more_than_is_uncertain() -> None:
    def clocks(offset_s: float, uncertainty_s: float) -> list[Kind]:
        clock = ClockOffset(1, offset_s, uncertainty_s, uncertainty_s * 2, uncertainty_s * 2)
        return notes(dataclasses.replace(healthy(), clocks=(clock,)))

    assert clocks(0.4, 0.0) == []
    assert clocks(0.6, 0.0) == clocks(-0.6, 0.0) == [Kind.CLOCK]
    assert clocks(0.6, 0.2) == []


def test_problems_come_first() -> None:
    picture = with_mtu(with_nic(healthy(nics=2), 1, 0, speed_mbit_s=1), Pair(0, 1, 2, 1), 1400)
    assert [each.is_problem for each in found(picture)] == [True, False]
