"""The picture of a network for a person and for scripts; what it means was decided in ``planner``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from r2ccl.cli.plain_table import aligned, mbit_s, milliseconds
from r2ccl.planner.network_findings import symmetric_rails
from r2ccl.planner.network_mtus import agreed_bytes
from r2ccl.planner.network_picture import Outcome, Pair, Picture, Reach
from r2ccl.planner.network_remarks import Finding
from r2ccl.planner.survival import Survival, Verdict

#: A matrix with more columns than this is for scripts; a person gets a line per rail, and the findings.
MATRIX_COLUMNS_MAX = 16
_SHORT: Final = {
    Outcome.STRANGER: "stranger",
    Outcome.REFUSED: "refused",
    Outcome.SILENT: "silent",
    Outcome.NO_ROUTE: "no route",
    Outcome.FAILED: "failed",
}
_VERDICTS: Final = {Verdict.DIRECT: "yes", Verdict.RELAYED: "yes, by relay", Verdict.CUT: "no"}


def as_object(picture: Picture, survivals: Sequence[Survival], found: Sequence[Finding], code: int) -> dict[str, Any]:
    """One JSON object: all that was seen and concluded."""
    return {
        "exit_code": code,
        "findings": [{"kind": each.kind.value, "problem": each.is_problem, "text": each.text} for each in found],
        "hosts": [dataclasses.asdict(host) for host in picture.hosts],
        "reach": [
            {
                **_pair(reach.pair),
                "outcome": reach.outcome.value,
                "detail": reach.detail,
                "connect_min_s": reach.connect_min_s,
                "connect_median_s": reach.connect_median_s,
            }
            for reach in picture.reaches
        ],
        "rails_symmetric": {f"nic{rail}": symmetric for rail, symmetric in symmetric_rails(picture).items()},
        "mtu": [
            {
                **_pair(mtu.pair),
                "interface_bytes": agreed_bytes(picture, mtu),
                "path_bytes": mtu.path_bytes,
                "told": mtu.told,
            }
            for mtu in picture.mtus
        ],
        "rates": [{**_pair(rate.pair), "bytes_s": rate.bytes_s} for rate in picture.rates],
        "clocks": [dataclasses.asdict(clock) for clock in picture.clocks],
        "survival": [
            {
                "loss": survival.loss.what,
                "nics": sorted(survival.loss.nics),
                "survived": survival.verdict is not Verdict.CUT,
                "verdict": survival.verdict.value,
                "because": survival.reason,
            }
            for survival in survivals
        ],
    }


def _pair(pair: Pair) -> dict[str, int]:
    return dataclasses.asdict(pair)


def as_lines(picture: Picture, survivals: Sequence[Survival], found: Sequence[Finding]) -> list[str]:
    """For a person: what there is, what was seen, what is survived, and last what is wrong."""
    lines = [*_nics(picture)]
    for title, section in (
        (
            "reach (median connect time, ms; rows reach columns; across rails it takes a route, and serves as backup)",
            _matrix(picture),
        ),
        ("rails", _rails(picture)),
        ("path MTU", _mtus(picture)),
        ("rate (one stream, a lower bound)", _rates(picture)),
        ("clocks, against rank 0's", _clocks(picture)),
        ("does a job survive the loss of", _survival(survivals)),
        ("problems", [f"! {each.text}" for each in found if each.is_problem]),
        ("notes", [f"- {each.text}" for each in found if not each.is_problem]),
    ):
        if section:
            lines += ["", f"{title}:", *(f"  {line}" for line in section)]
    return [*lines, "", verdict_line(found)]


def verdict_line(found: Sequence[Finding]) -> str:
    """The last line."""
    problems = sum(each.is_problem for each in found)
    notes = f"{len(found) - problems} note{'s' if len(found) - problems != 1 else ''}"
    if not problems:
        return f"fine: no problem, {notes}"
    return f"{problems} problem{'s' if problems != 1 else ''}, {notes}"


def _nics(picture: Picture) -> list[str]:
    rows = [
        [
            str(host.rank), host.host, f"nic{nic.index}", nic.name,
            f"{nic.address}/{nic.prefix_length}" if nic.prefix_length else nic.address,
            mbit_s(nic.speed_mbit_s), str(nic.mtu_bytes), nic.driver or "-", "up" if nic.up else "down",
        ]
        for host, nic in picture.nics()
    ]  # fmt: skip
    return aligned(("rank", "host", "NIC", "device", "address", "speed", "MTU", "driver", "state"), rows)


def _matrix(picture: Picture) -> list[str]:
    ends = [(host.rank, nic.index) for host, nic in picture.nics()]
    if not picture.reaches:
        return []
    if len(ends) > MATRIX_COLUMNS_MAX:
        reached = sum(reach.outcome is Outcome.REACHED for reach in picture.reaches)
        return [f"{reached} of {len(picture.reaches)} pairs of NICs; all of them with --json"]
    seen = {reach.pair: reach for reach in picture.reaches}
    rows = [
        [f"{rank}.nic{nic}", *(_cell(seen.get(Pair(rank, nic, *other)), (rank, nic) == other) for other in ends)]
        for rank, nic in ends
    ]
    return aligned(("", *(f"{rank}.nic{nic}" for rank, nic in ends)), rows)


def _cell(reach: Reach | None, is_itself: bool) -> str:
    if reach is None:
        return "." if is_itself else "-"
    return f"{reach.connect_median_s * 1e3:.2f}" if reach.outcome is Outcome.REACHED else _SHORT[reach.outcome]


def _rails(picture: Picture) -> list[str]:
    return [
        f"nic{rail}: {'symmetric: every rank reaches every other' if whole else 'NOT symmetric'}"
        for rail, whole in symmetric_rails(picture).items()
    ]


def _mtus(picture: Picture) -> list[str]:
    """Pairs with the same to say, together."""
    groups: dict[tuple[int, int, int, int, bool], int] = {}
    for mtu in picture.mtus:
        key = (mtu.pair.source_nic, mtu.pair.target_nic, agreed_bytes(picture, mtu), mtu.path_bytes, mtu.told)
        groups[key] = groups.get(key, 0) + 1
    lines = []
    for (ours, theirs, agreed, path_bytes, told), pairs in sorted(groups.items()):
        what = f"nic{ours} to nic{theirs}, {pairs} pair{'s' if pairs > 1 else ''}: interface MTU {agreed}"
        if path_bytes == 0:
            lines.append(f"{what}, path MTU not known")
        elif path_bytes >= agreed:
            lines.append(f"{what}, which passes whole")
        else:
            lines.append(f"{what}, path MTU {path_bytes}, {'said by the network' if told else 'SILENT'}")
    return lines


def _rates(picture: Picture) -> list[str]:
    return [
        f"rank {rate.pair.source} nic{rate.pair.source_nic} to rank {rate.pair.target} nic{rate.pair.target_nic}: "
        + (f"{rate.bytes_s * 8e-6:.0f} Mbit/s" if rate.bytes_s else "failed")
        for rate in picture.rates
    ]


def _clocks(picture: Picture) -> list[str]:
    return [
        f"rank {clock.rank}: {clock.offset_s * 1e3:+.3f} ms, give or take {milliseconds(clock.uncertainty_s)}; "
        f"round trip {milliseconds(clock.rtt_min_s)} at least, {milliseconds(clock.rtt_median_s)} in the median"
        for clock in picture.clocks
    ]


def _survival(survivals: Sequence[Survival]) -> list[str]:
    return [f"{each.loss.what}: {_VERDICTS[each.verdict]}, {each.reason}" for each in survivals]
