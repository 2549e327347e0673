"""One rank of a soak in the lab: rounds of mixed work, each result compared, and once a second what the process keeps.

    python -m r2ccl.cli.soak_worker OPTIONS      (JSON, see demo_worker_options)

It is the demo's worker with another stream; reports and commands are the same. Besides, a sample says under ``soak``
what was found wrong since the last, which rounds are over and the digest of what all ranks must have alike, and what
the process keeps (sim.gauges).
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from typing import Final

import numpy as np
import psutil
import uvloop

import r2ccl
from r2ccl.cli.demo_worker import Worker
from r2ccl.cli.demo_worker_options import Options
from r2ccl.clock import MonotonicClock
from r2ccl.communicator import Communicator
from r2ccl.sim import rounds
from r2ccl.sim.checkers import Complaints, kept, missing_links
from r2ccl.sim.gauges import read
from r2ccl.sim.history import History

#: Sizes are drawn around one of these; no call moves more than that many bytes.
CHUNKS_BYTES: Final = (4 << 10, 32 << 10, 128 << 10)
BYTES_MAX: Final = 2 << 20
#: A rank computes for up to so long before a round, now and then.
PAUSE_S: Final = 0.05
READ_EVERY_S: Final = 1.0
#: In the end: for links to come back and for acknowledgements; and by how much ranks may be apart in it.
SETTLE_WITHIN_S: Final = 7.0
SKEW_S: Final = 2.0
LOOK_EVERY_S: Final = 0.1


class SoakWorker(Worker):
    """The rounds of one rank."""

    def __init__(self, comm: Communicator, options: Options) -> None:
        super().__init__(comm, options, None)
        self._seed = options.seed
        self._complaints = Complaints(History(MonotonicClock()))
        self._told = 0
        self._tally = rounds.Tally(ended=lambda: self._completions.append(MonotonicClock.now()))
        #: (number, digest) of rounds that are over and not told.
        self._over: list[tuple[int, str]] = []
        self._process = psutil.Process()
        self._next_reading_s = 0.0

    async def _stream(self) -> None:
        rng = random.Random(f"rank {self._comm.rank} of {self._seed}")
        number = 0
        while not await self._round(number, rng.uniform(0.0, PAUSE_S) if rng.random() < 0.3 else 0.0):
            number += 1
            if not self._ready:
                self._ready = True
                self._report({"kind": "ready"})
        await self._settle()

    async def _round(self, number: int, pause_s: float) -> bool:
        """One; whether it was the last, on which all ranks agree."""
        await asyncio.sleep(pause_s)
        chunk_bytes = random.Random(f"sizes of {number} of {self._seed}").choice(CHUNKS_BYTES)
        drawn = rounds.draw_round(self._seed, number, self._comm.size, chunk_bytes, BYTES_MAX)
        answers = rounds.answers_of(drawn, self._complaints)
        player = rounds.Player(drawn, answers, self._complaints, self._tally)
        await player.play(self._comm)
        stop = np.array([self._stop.is_set()], np.int32)
        await self._comm.all_reduce(stop)
        player.look_back()
        self._over.append((number, rounds.digest_of(drawn, answers)))
        return bool(stop[0])

    async def _settle(self) -> None:
        """All is healed: links come back, and nothing may be kept. All ranks look for the same time, because what one
        calls next is kept by another that looks for longer."""
        end_s = MonotonicClock.now() + SETTLE_WITHIN_S + SKEW_S
        for _ in range(int(SETTLE_WITHIN_S / LOOK_EVERY_S)):
            if not self._left():
                break
            await asyncio.sleep(LOOK_EVERY_S)
        for text in self._left():
            self._complaints.add(text)
        await asyncio.sleep(max(0.0, end_s - MonotonicClock.now()))
        # Whoever is first must not say goodbye while another still looks.
        await self._comm.barrier()

    def _left(self) -> list[str]:
        runtime = self._comm._runtime
        return [*missing_links(runtime), *kept(runtime)]

    def _more(self) -> dict[str, object]:
        texts = self._complaints.texts[self._told :]
        self._told += len(texts)
        over, self._over = self._over, []
        told: dict[str, object] = {"complaints": texts, "rounds": over, "failovers": self._comm.counters.failovers}
        now = MonotonicClock.now()
        if now >= self._next_reading_s:
            self._next_reading_s = now + READ_EVERY_S
            runtime = self._comm._runtime
            gc.collect(1)
            reading = read(now, [runtime], self._process, len(runtime.shared.timers), counts=True)
            told["reading"] = reading.as_json()
        return {"soak": told}


async def work(options: Options) -> None:
    """Connect, soak, close."""
    async with await r2ccl.connect() as comm:
        await SoakWorker(comm, options).run()


def main() -> None:
    """The program."""
    uvloop.run(work(Options.parse(sys.argv[1])))


if __name__ == "__main__":
    main()
