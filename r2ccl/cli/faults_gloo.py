"""One rank of gloo under a fault: all-reduces without pause. Runs in an interpreter with torch (see bench_peer_start).

Its reports are those of the demo's ranks (see demo_worker). gloo has no answer to a lost path but its timeout, after
which it raises, and that is reported as a loss. It was given all NICs and uses one.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class GlooOptions:
    """One argument, as JSON."""

    report_descriptor: int
    rank: int
    ranks: int
    meeting_point: str
    elements: int
    timeout_s: float

    def as_argument(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> GlooOptions:
        """From the command line."""
        return cls(**json.loads(argument))


def report(options: GlooOptions, **what: Any) -> None:
    """One line."""
    line = json.dumps({"time_s": time.monotonic(), **what}).encode() + b"\n"
    while line:
        line = line[os.write(options.report_descriptor, line) :]


def stream(options: GlooOptions, distributed: Any, x: Any) -> None:
    """Until some rank is told to stop; the last element is a vote, as the demo's."""
    counters = {"total": {"resent_bytes": 0}, "nics": {}}
    ended = False
    while not ended:
        wants_to_stop = bool(select.select([sys.stdin], [], [], 0)[0])
        x.fill_(float(options.rank + 1))
        x[-1] = float(wants_to_stop)
        distributed.all_reduce(x)
        now = time.monotonic()
        ended = bool(x[-1] != 0)
        right = options.ranks * (options.ranks + 1) // 2
        report(
            options, kind="sample", counters=counters, events=[], completions=[now],
            arrivals=[[now, 0, x.numel() * 4]], wrong_elements=int((x[:-1] != right).sum()),
        )  # fmt: skip


def main(argument: str) -> None:
    """The program."""
    options = GlooOptions.parse(argument)
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    x = torch.zeros(options.elements)
    distributed: Any = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=options.meeting_point, rank=options.rank, world_size=options.ranks,
        timeout=timedelta(seconds=options.timeout_s),
    )  # fmt: skip
    distributed.all_reduce(x)
    report(options, kind="ready")
    try:
        stream(options, distributed, x)
    except RuntimeError as died:
        report(options, kind="lost", error=str(died).strip().splitlines()[0])
        # Its threads would wait for the others once more.
        os._exit(0)
    report(options, kind="done")
