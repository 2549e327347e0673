"""What is wrong with a network, judged from the picture of it.

A *problem* will harm a job: it does not start, stalls, goes slowly, or ends with a fault that its NICs should have
survived. A *note* is worth knowing and harms nobody by itself. Scripts go by this difference, so it is drawn here:

    problem   a NIC that is down or reaches nobody; a rail that does not join all; a pair that works one way; a stranger
              at a NIC's address; an address or hardware address that two hosts have; large packets that vanish
              without a word; two NICs of a host in one subnet that answer for each other; a NIC with less than a
              quarter of its rail's rate; two ranks without any path; a NIC whose loss ends the job though its hosts
              have others
    note      the rest: unlike numbers, speeds or MTUs, packets that are too large and are said to be, NICs in one
              subnet that keep apart, less than half of the rail's rate, clocks that differ, hosts with a single NIC

What one cause explains is told once: of a NIC that is down it is not told besides whom it does not reach.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import combinations
from statistics import median

from r2ccl.planner.network_mtus import black_holes, mtu_findings
from r2ccl.planner.network_picture import NicView, Outcome, Pair, Picture
from r2ccl.planner.network_remarks import Finding, Kind, note, problem
from r2ccl.planner.survival import Survival, Verdict, unjoined

#: One stream's rate varies on a busy host; a NIC at the wrong speed or in half-duplex is further off.
RATE_SHARE_PROBLEM = 0.25
RATE_SHARE_NOTE = 0.5
#: Logs of hosts whose clocks differ by more cannot be read side by side. r2ccl itself never compares clocks.
CLOCK_OFFSET_S_MAX = 0.5


class NicState(enum.Enum):
    """How much of a NIC's network works."""

    WORKS = enum.auto()
    DOWN = enum.auto()
    ALONE = enum.auto()  #: up, and no pair with it works, in either direction


def findings(picture: Picture, survivals: list[Survival]) -> list[Finding]:
    """All of them, problems first."""
    found = [
        *_duplicates(picture),
        *_dead_nics(picture),
        *_pairs(picture),
        *_no_path(picture),
        *mtu_findings(picture),
        *_subnets(picture),
        *_unlike(picture),
        *_rates(picture),
        *_clocks(picture),
        *_survival(survivals),
    ]
    return sorted(found, key=lambda finding: not finding.is_problem)


def expected_pairs(picture: Picture) -> list[Pair]:
    """Both directions of every rail: these must work. Backups may."""
    rails = []
    for pair in picture.links:
        counts = len(picture.hosts[pair.source].nics), len(picture.hosts[pair.target].nics)
        if pair.source_nic % min(counts) == pair.target_nic % min(counts):
            rails += [pair, pair.back]
    return rails


def symmetric_rails(picture: Picture) -> dict[int, bool]:
    """Of each rail, whether it joins every two ranks that have it, both ways."""
    reached = picture.reached
    rails: dict[int, bool] = {}
    for pair in expected_pairs(picture):
        rail = max(pair.source_nic, pair.target_nic)
        rails[rail] = rails.get(rail, True) and pair in reached
    return dict(sorted(rails.items()))


def nic_states(picture: Picture) -> dict[tuple[int, int], NicState]:
    """Of every NIC that is down, or that somebody should reach."""
    reached = picture.reached
    states = {(host.rank, nic.index): NicState.DOWN for host, nic in picture.nics() if not nic.up}
    for pair in expected_pairs(picture):
        key = (pair.source, pair.source_nic)
        if states.get(key) not in (NicState.DOWN, NicState.WORKS):
            works = pair in reached or pair.back in reached
            states[key] = NicState.WORKS if works else NicState.ALONE
    return states


def _duplicates(picture: Picture) -> Iterator[Finding]:
    for what, kind in (("address", Kind.DUPLICATE_ADDRESS), ("mac", Kind.DUPLICATE_MAC)):
        seen: dict[str, tuple[int, NicView]] = {}
        for host, nic in picture.nics():
            value = getattr(nic, what)
            if not value.strip("0:"):
                continue  # unknown, or loopback
            first_rank, first = seen.setdefault(value, (host.rank, nic))
            if picture.hosts[first_rank].node != host.node:
                one, other = picture.name(first_rank, first.index), picture.name(host.rank, nic.index)
                word = "address" if kind is Kind.DUPLICATE_ADDRESS else "hardware address"
                yield problem(
                    kind,
                    f"{one} and {other} both have the {word} {value}: frames for one arrive at the other, now at this "
                    "one, now at that; give each its own",
                )


def _dead_nics(picture: Picture) -> Iterator[Finding]:
    for (rank, nic), state in sorted(nic_states(picture).items()):
        name = picture.name(rank, nic)
        if state is NicState.DOWN:
            yield problem(Kind.NIC_DOWN, f"{name} is down or has no carrier: cable, switch port, `ip link`")
        elif state is NicState.ALONE:
            others = sorted(
                {pair.target_nic for pair in picture.reached if (pair.source, pair.source_nic) == (rank, nic)}
            )
            hint = (
                f"; it reaches nic{', nic'.join(map(str, others))} of others, so the order of NICs differs: give "
                "R2CCL_NICS in one order on all hosts"
                if others
                else ""
            )
            yield problem(Kind.NIC_ALONE, f"{name} reaches no NIC of its rail, and none reaches it{hint}")


def _pairs(picture: Picture) -> Iterator[Finding]:
    """Rail pairs that do not work though both NICs do, and strangers wherever they are."""
    outcomes = {reach.pair: reach for reach in picture.reaches}
    states = nic_states(picture)
    told: set[Pair] = set()
    for reach in picture.reaches:
        if reach.outcome is Outcome.STRANGER:
            told.update((reach.pair, reach.pair.back))
            target = picture.nic(reach.pair.target, reach.pair.target_nic)
            yield problem(
                Kind.STRANGER,
                f"at {target.address}, the address of {picture.name(reach.pair.target, reach.pair.target_nic)}, "
                f"{picture.name(reach.pair.source, reach.pair.source_nic)} meets somebody else: {reach.detail}",
            )
    for pair in expected_pairs(picture):
        seen, back = outcomes.get(pair), outcomes.get(pair.back)
        if seen is None or seen.outcome is Outcome.REACHED or pair in told:
            continue
        if any(states[key] is not NicState.WORKS for key in _ends(pair)):
            continue
        one, other = (picture.name(*key) for key in _ends(pair))
        why = f"{seen.outcome.value}{': ' + seen.detail if seen.detail else ''}"
        if back is not None and back.outcome is Outcome.REACHED:
            yield problem(
                Kind.ONE_WAY, f"{one} does not reach {other} ({why}), which reaches it: a firewall, or a route"
            )
        elif pair.source < pair.target:
            yield problem(Kind.BROKEN_PAIR, f"{one} and {other} do not reach each other ({why})")


def _ends(pair: Pair) -> tuple[tuple[int, int], tuple[int, int]]:
    return (pair.source, pair.source_nic), (pair.target, pair.target_nic)


def _no_path(picture: Picture) -> Iterator[Finding]:
    for one, other in unjoined(picture):
        yield problem(
            Kind.NO_PATH,
            f"rank {one} and rank {other} have no link that works both ways, on any NIC: a job would not connect",
        )


def _subnets(picture: Picture) -> Iterator[Finding]:
    for host in picture.hosts:
        for one, other in combinations(host.nics, 2):
            if one.network is None or other.network is None or not one.network.overlaps(other.network):
                continue
            if one.name == other.name:
                continue  # several addresses on one device, such as loopback's stand-ins for NICs
            where = f"rank {host.rank} ({host.host}): {one.name} ({one.address}) and {other.name} ({other.address})"
            if one.answers_for_itself and other.answers_for_itself:
                yield note(
                    Kind.SHARED_SUBNET,
                    f"{where} are in one subnet, {one.network}. They answer for themselves only, and r2ccl binds to "
                    "the NIC, so each carries its own; other programs would use one of them",
                )
            else:
                yield problem(
                    Kind.SHARED_SUBNET,
                    f"{where} are in one subnet, {one.network}, and answer for each other, so that what is meant for "
                    "one may arrive by the other, and both are lost with it. A subnet for each NIC, or "
                    "`sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`",
                )


def _unlike(picture: Picture) -> Iterator[Finding]:
    counts = {host.rank: len(host.nics) for host in picture.hosts}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"rank {rank} has {count}" for rank, count in counts.items())
        yield note(
            Kind.UNLIKE_NICS,
            f"the numbers of NICs differ ({words}): some serve several rails. A NIC that is down is left out unless "
            "R2CCL_NICS names it; `r2ccl nics` tells",
        )
    for rail in range(max(counts.values(), default=0)):
        nics = [(host.rank, host.nics[rail]) for host in picture.hosts if rail < len(host.nics)]
        speeds = {nic.speed_mbit_s for _, nic in nics if nic.speed_mbit_s}
        if len(speeds) > 1:
            words = ", ".join(f"rank {rank}: {nic.speed_mbit_s or 'unknown'}" for rank, nic in nics)
            yield note(Kind.UNLIKE_SPEEDS, f"the NICs of rail {rail} have unlike speeds in Mbit/s ({words})")


def _rates(picture: Picture) -> Iterator[Finding]:
    by_rail: dict[int, list[tuple[Pair, float]]] = {}
    holes = black_holes(picture)
    for rate in picture.rates:
        if rate.pair in holes:
            continue  # what passes there is no matter of speed
        by_rail.setdefault(rate.pair.source_nic, []).append((rate.pair, rate.bytes_s))
    for rail, rates in sorted(by_rail.items()):
        # Of two rates the median is their mean, which hides that one of them is tiny; then the better one counts.
        usual = median(bytes_s for _, bytes_s in rates) if len(rates) > 2 else max(bytes_s for _, bytes_s in rates)
        for pair, bytes_s in rates:
            if bytes_s >= RATE_SHARE_NOTE * usual:
                continue
            one, other = (picture.name(*key) for key in _ends(pair))
            text = (
                f"{one} sends {other} {bytes_s * 8e-6:.0f} Mbit/s, while {usual * 8e-6:.0f} Mbit/s are usual on rail "
                f"{rail}: duplex, autonegotiation, cable, or a busy host"
            )
            make = problem if bytes_s < RATE_SHARE_PROBLEM * usual else note
            yield make(Kind.SLOW, text)


def _clocks(picture: Picture) -> Iterator[Finding]:
    for clock in picture.clocks:
        if abs(clock.offset_s) - clock.uncertainty_s > CLOCK_OFFSET_S_MAX:
            ahead = "ahead of" if clock.offset_s > 0 else "behind"
            yield note(
                Kind.CLOCK,
                f"the wall clock of rank {clock.rank} is {abs(clock.offset_s):.3f} s {ahead} rank 0's: logs of the two "
                "do not line up",
            )


def _survival(survivals: list[Survival]) -> Iterator[Finding]:
    cut = [survival for survival in survivals if survival.verdict is Verdict.CUT]
    for survival in cut:
        loss = survival.loss
        told = any(other.loss.nics < loss.nics and set(survival.ranks) <= set(other.ranks) for other in cut)
        if told:
            continue  # a rail, of which a single NIC does it
        if not loss.is_all_of_a_rank:
            yield problem(Kind.NOT_SURVIVED, f"loss of {loss.what} is not survived: {survival.reason}")
        elif loss.is_one_device:
            yield note(Kind.SINGLE_NIC, f"loss of {loss.what} is not survived: its host has no other NIC")
