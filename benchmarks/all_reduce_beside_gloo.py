"""All-reduce of float32 over loopback TCP: r2ccl beside gloo, on the same cores, turn by turn.

    python benchmarks/all_reduce_beside_gloo.py [--ranks 4] [--torch-python /path/to/python] [--json]

Two measurements an hour apart differ more than two libraries do. So all ranks of both libraries are started once, and
in each round, at each size, one library works while the ranks of the other are parked in a read from a pipe; then they
swap, and who goes first alternates. What is compared is the ratio within a round. The table shows medians over the
rounds and, in parentheses, the smallest and the largest: a difference within that spread is none.

A turn is: some operations to warm up, the timed ones, and one whose every element is verified. A turn takes as long as
its slowest rank. Both libraries do the same number of operations, chosen once per size to fill about ``--turn-s``.
torch may be installed for another interpreter: this file needs only numpy there.

Each operation is timed, and the number to quote is the ratio of the turns' median operations. A mean says something
else: on two cores with nothing else to do, one in ten of gloo's small operations was seen to take 4 to 8 ms, so that
its mean was 1 ms where its median was 0.25; with a neighbour on one of the cores its mean was 0.25 too. A ratio of
means would flatter us by whatever the neighbours do. It is printed beside the other, because those operations were
slow for their caller all the same, and so is the CPU time that others took meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np

SIZES_BYTES = (*(4 * 4**power for power in range(13)), 128 << 20)
OPERATIONS_MAX = 2000
OPERATIONS_MIN = 3
#: The pattern's period is a prime, so that a segment in a wrong place is seen; its values are small, so sums are exact.
PATTERN_PERIOD = 8191


@dataclass(frozen=True, slots=True)
class Turn:
    """What the ranks of one library are told to do."""

    size_bytes: int
    warmup: int
    operations: int
    seed: int


#: (median, smallest, largest) of the rounds.
Spread = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds per operation in one turn, by the slowest rank."""

    median_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One size. Ratios are r2ccl / gloo within a round: below 1, r2ccl took less time."""

    size_bytes: int
    operations: int
    median_us: dict[str, Spread]
    mean_us: dict[str, Spread]
    #: Of the median operation.
    busbw_gbit_s: dict[str, float]
    ratio: Spread | None
    ratio_of_means: Spread | None


# The ranks' side.


def pattern(rank: int, elements: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a rank contributes: integers from -8 to 7, different for each rank and seed."""
    period = np.random.default_rng((seed, rank)).integers(-8, 8, PATTERN_PERIOD).astype(np.float32)
    return np.resize(period, elements)


def verify(result: np.ndarray[Any, np.dtype[np.float32]], ranks: int, seed: int) -> None:
    """Every element, or the end."""
    expected = sum(pattern(rank, min(result.size, PATTERN_PERIOD), seed) for rank in range(ranks))
    wrong = np.count_nonzero(result != np.resize(np.asarray(expected), result.size))
    if wrong:
        raise SystemExit(f"{wrong} of {result.size} elements are wrong")


def turns() -> Iterator[Turn]:
    """One turn after the other, parked in between; ends when the driver does."""
    for line in sys.stdin:
        yield Turn(**json.loads(line))


def claim_stdout() -> TextIO:
    """Where to answer the driver; whatever libraries print goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


async def r2ccl_rank(rank: int, ranks: int) -> None:
    import r2ccl

    answers = claim_stdout()
    async with r2ccl.connect() as comm:
        print("ready", file=answers)
        for turn in turns():
            buffer = np.zeros(turn.size_bytes // 4, np.float32)
            for _ in range(turn.warmup):
                await comm.all_reduce(buffer)
            took_s = []
            for _ in range(turn.operations):
                started_s = time.perf_counter()
                await comm.all_reduce(buffer)
                took_s.append(time.perf_counter() - started_s)
            buffer[:] = pattern(rank, buffer.size, turn.seed)
            await comm.all_reduce(buffer)
            verify(buffer, ranks, turn.seed)
            print(json.dumps([statistics.median(took_s), statistics.fmean(took_s)]), file=answers)


def gloo_rank(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed

    answers = claim_stdout()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    print("ready", file=answers)
    for turn in turns():
        buffer = np.zeros(turn.size_bytes // 4, np.float32)
        tensor = torch.from_numpy(buffer)
        for _ in range(turn.warmup):
            torch.distributed.all_reduce(tensor)
        took_s = []
        for _ in range(turn.operations):
            started_s = time.perf_counter()
            torch.distributed.all_reduce(tensor)
            took_s.append(time.perf_counter() - started_s)
        buffer[:] = pattern(rank, buffer.size, turn.seed)
        torch.distributed.all_reduce(tensor)
        verify(buffer, ranks, turn.seed)
        print(json.dumps([statistics.median(took_s), statistics.fmean(took_s)]), file=answers)
    torch.distributed.destroy_process_group()


def be_a_rank(library: str) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if library == "gloo":
        gloo_rank(rank, ranks)
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(r2ccl_rank(rank, ranks))


# The driver's side.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Team:
    """The ranks of one library, parked unless they have a turn."""

    def __init__(self, library: str, python: str, ranks: int, nics: str, patience_s: float) -> None:
        self.library = library
        self._patience_s = patience_s
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "R2CCL_NICS": nics,
        }
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(ranks):
            environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [python, os.path.abspath(__file__), "--be-a-rank", library]
            pipe = subprocess.PIPE
            self._ranks.append(
                subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
            )

    def wait_until_ready(self) -> None:
        for rank in range(len(self._ranks)):
            self._answer(rank)

    def play(self, turn: Turn) -> Took:
        """Let the ranks work, and wait for the slowest."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(turn)) + "\n")
        answers = [json.loads(self._answer(rank)) for rank in range(len(self._ranks))]
        return Took(max(median for median, _ in answers), max(mean for _, mean in answers))

    def _answer(self, rank: int) -> str:
        stdout = self._ranks[rank].stdout
        assert stdout is not None
        if not select.select([stdout], [], [], self._patience_s)[0]:
            raise SystemExit(f"rank {rank} of {self.library} gave no answer for {self._patience_s:g} s")
        if not (line := stdout.readline()):
            raise SystemExit(f"rank {rank} of {self.library} ended with code {self._ranks[rank].wait()}")
        return line

    def close(self) -> None:
        """The end of their input ends the ranks; those that do not care are killed."""
        for process in self._ranks:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended by itself, which was reported
                process.stdin.close()
        for process in self._ranks:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def calibrate(teams: list[Team], size_bytes: int, turn_s: float) -> int:
    """How many operations fill a turn, by the slower library at its best of three."""
    trial = Turn(size_bytes, warmup=2, operations=OPERATIONS_MIN, seed=0)
    slowest_s = max(min(team.play(trial).median_s for _ in range(3)) for team in teams)
    return max(OPERATIONS_MIN, min(OPERATIONS_MAX, int(turn_s / slowest_s)))


def spread(values: list[float]) -> Spread:
    return statistics.median(values), min(values), max(values)


def ratio_of(seconds: dict[str, list[float]]) -> Spread | None:
    if len(seconds) < 2:
        return None
    return spread([ours / theirs for ours, theirs in zip(seconds["r2ccl"], seconds["gloo"], strict=True)])


def row(size_bytes: int, operations: int, ranks: int, took: dict[str, list[Took]]) -> Row:
    """One size's measurements, summed up."""
    bits = size_bytes * 8 * 2 * (ranks - 1) / ranks
    medians = {library: [each.median_s for each in turns_of] for library, turns_of in took.items()}
    means = {library: [each.mean_s for each in turns_of] for library, turns_of in took.items()}
    return Row(
        size_bytes,
        operations,
        median_us={library: spread([value * 1e6 for value in values]) for library, values in medians.items()},
        mean_us={library: spread([value * 1e6 for value in values]) for library, values in means.items()},
        busbw_gbit_s={library: bits / statistics.median(values) / 1e9 for library, values in medians.items()},
        ratio=ratio_of(medians),
        ratio_of_means=ratio_of(means),
    )


def busy_s() -> float:
    """CPU seconds that this machine was busy since it started, stolen time included. Linux only."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """CPU seconds of this process and of the ranks that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(teams: list[Team], arguments: argparse.Namespace) -> list[Row]:
    """All rounds of all sizes, the libraries taking turns."""
    sizes = [size for size in SIZES_BYTES if size <= arguments.bytes_max]
    operations = {size: calibrate(teams, size, arguments.turn_s) for size in sizes}
    took: dict[int, dict[str, list[Took]]] = {size: {team.library: [] for team in teams} for size in sizes}
    for index in range(arguments.rounds):
        for size in sizes:
            turn = Turn(size, warmup=max(1, operations[size] // 10), operations=operations[size], seed=index + 1)
            for team in teams if index % 2 == 0 else reversed(teams):
                took[size][team.library].append(team.play(turn))
        print(f"round {index + 1} of {arguments.rounds}", file=sys.stderr)
    return [row(size, operations[size], arguments.ranks, took[size]) for size in sizes]


def size_in_words(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def in_words(value: Spread | None, digits: int) -> str:
    return "-" if value is None else "{:,.{d}f} ({:,.{d}f} .. {:,.{d}f})".format(*value, d=digits)


def print_table(rows: list[Row]) -> None:
    libraries = list(rows[0].median_us)
    titles = [f"{library} us" for library in libraries] + ["ratio", "ratio of means"]
    speeds = [f"{library} Gbit/s" for library in libraries]
    print(
        f"{'size':>8} {'ops':>5} " + " ".join(f"{t:>30}" for t in titles) + " " + " ".join(f"{t:>13}" for t in speeds)
    )
    for line in rows:
        cells = [in_words(value, 1) for value in line.median_us.values()]
        cells += [in_words(line.ratio, 2), in_words(line.ratio_of_means, 2)]
        print(
            f"{size_in_words(line.size_bytes):>8} {line.operations:>5}",
            " ".join(f"{cell:>30}" for cell in cells),
            end=" ",
        )
        print(" ".join(f"{value:>13.2f}" for value in line.busbw_gbit_s.values()))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All-reduce over loopback TCP, beside gloo.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn-s", type=float, default=0.3, help="about how long a turn's timed part takes")
    parser.add_argument("--bytes-max", type=int, default=SIZES_BYTES[-1], help="leave out larger sizes")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--only", choices=("r2ccl", "gloo"), help="measure one alone")
    parser.add_argument("--nics", default="127.0.0.1", help="R2CCL_NICS of the ranks")
    parser.add_argument("--patience-s", type=float, default=120.0, help="a turn that takes longer is an error")
    parser.add_argument("--json", action="store_true", help="print all numbers as one JSON object, last")
    parser.add_argument("--be-a-rank", choices=("r2ccl", "gloo"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.ranks < 2 or arguments.rounds < 1 or arguments.bytes_max < SIZES_BYTES[0]:
        parser.error("at least 2 ranks, 1 round and 4 bytes")
    return arguments


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    if arguments.be_a_rank:
        be_a_rank(arguments.be_a_rank)
        return
    pythons = {"r2ccl": sys.executable, "gloo": arguments.torch_python}
    if arguments.only:
        pythons = {arguments.only: pythons[arguments.only]}
    if "gloo" in pythons and subprocess.run([pythons["gloo"], "-c", "import torch"], capture_output=True).returncode:
        raise SystemExit(f"{pythons['gloo']} has no torch: name one that has with --torch-python, or pass --only r2ccl")
    busy_before_s, own_before_s, started_s = busy_s(), own_s(), time.perf_counter()
    with contextlib.ExitStack() as cleanup:
        teams = []
        for library, python in pythons.items():
            team = Team(library, python, arguments.ranks, arguments.nics, arguments.patience_s)
            cleanup.callback(team.close)
            teams.append(team)
        for team in teams:
            team.wait_until_ready()
        rows = measure(teams, arguments)
    others = max(0.0, busy_s() - busy_before_s - (own_s() - own_before_s)) / (time.perf_counter() - started_s)
    shape = f"{arguments.ranks} ranks, {arguments.rounds} rounds, {os.cpu_count()} cores"
    print(f"\nall-reduce float32, loopback TCP, {shape}")
    print(f"median operation: median (smallest .. largest) of the rounds; others used {others:.2f} cores meanwhile\n")
    print_table(rows)
    if arguments.json:
        measured = {"ranks": arguments.ranks, "rounds": arguments.rounds, "cores_used_by_others": round(others, 3)}
        print(json.dumps(measured | {"rows": [asdict(line) for line in rows]}))


if __name__ == "__main__":
    main(sys.argv[1:])
