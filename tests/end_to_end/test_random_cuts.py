"""A hundred cuts at random while four ranks compute: not one wrong element, not one error."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from r2ccl.lab import Lab
from tests.end_to_end.ranks import RunningStream, on_hosts

#: The faulthandler's own limit is for tests that hang; this one takes long.
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.namespaces,
    pytest.mark.slow,
    pytest.mark.timeout(280),
]

SEED = 20260
CUTS = 100
HOSTS = 4
NICS = 2
ELEMENTS = (1 << 20) - 1
#: Between one cut and the next, and from a cut to its healing: they overlap, and often no NIC is back in service yet.
PAUSE_S = (0.02, 0.8)
OUTAGE_S = (0.05, 2.0)

Nic = tuple[int, int]


@dataclass
class Cutter:
    """Cuts and heals, and leaves every pair of hosts a rail in common."""

    lab: Lab
    rng: random.Random
    #: NIC -> (when it heals, how).
    away: dict[Nic, tuple[float, str]] = field(default_factory=dict)
    made: int = 0
    history: list[str] = field(default_factory=list)

    def may_go(self, nic: Nic) -> bool:
        away = {*self.away, nic}
        return nic not in self.away and all(
            any((one, rail) not in away and (other, rail) not in away for rail in range(NICS))
            for one, other in itertools.combinations(range(HOSTS), 2)
        )

    def cut(self) -> bool:
        """Cut any NIC that may go; returns whether there was one."""
        candidates = [nic for nic in itertools.product(range(HOSTS), range(NICS)) if self.may_go(nic)]
        if not candidates:
            return False
        nic = self.rng.choice(candidates)
        how = self.rng.choice(("link down", "silence"))
        cut_s = self.lab.link_down(*nic) if how == "link down" else self.lab.silent_drop(*nic)
        self.away[nic] = (cut_s + self.rng.uniform(*OUTAGE_S), how)
        self.made += 1
        self.history.append(f"{cut_s:.3f} {how} of rank {nic[0]}'s nic{nic[1]}")
        return True

    def heal(self, now: float) -> None:
        """What is due."""
        for nic, (due_s, how) in list(self.away.items()):
            if due_s <= now:
                healed_s = self.lab.link_up(*nic) if how == "link down" else self.lab.undrop(*nic)
                del self.away[nic]
                self.history.append(f"{healed_s:.3f} healed rank {nic[0]}'s nic{nic[1]}")


@pytest.mark.parametrize("seed", [SEED])
def test_a_hundred_random_cuts_leave_no_wrong_element_and_no_error(seed: int, tmp_path: Path) -> None:
    with Lab(hosts=HOSTS, nics=NICS, rate_mbit_s=500) as lab, on_hosts(lab, tmp_path) as ranks:
        ranks.connect()
        cutter = Cutter(lab, random.Random(seed))
        stream = RunningStream(ranks, ELEMENTS, in_flight=3)
        stream.go_on(5)
        next_cut_s = time.monotonic()
        try:
            while cutter.made < CUTS or cutter.away:
                now = time.monotonic()
                cutter.heal(now)
                if cutter.made < CUTS and now >= next_cut_s and cutter.cut():
                    next_cut_s = now + cutter.rng.uniform(*PAUSE_S)
                stream.fail_early()
                time.sleep(0.01)
            stream.go_on(5)
            operations = stream.stop()
        except BaseException:
            print(f"seed {seed}, {cutter.made} cuts, the last of them:", *cutter.history[-12:], sep="\n    ")
            raise
        totals = [stats["counters"]["total"] for stats in ranks.ask("stats")]
        times = ranks[0].ask("completions")
        longest_s = max(later - earlier for earlier, later in itertools.pairwise(times))
        resent_mb = sum(total["resent_bytes"] for total in totals) / 1e6
        print(
            f"{cutter.made} cuts in {operations} operations, {resent_mb:.0f} MB resent, longest wait {longest_s:.2f} s"
        )
        ranks.end_well()
