"""``make test-compose``: four ranks in four containers, one NIC cut in every way there is, every element checked.

The ranks run examples/all_reduce_stream.py by compose.yaml, without pause. For each way of :mod:`tests.compose.cuts` a
NIC of another rank is cut, stays away for a while, and comes back. What must hold: all ranks go on while it is away,
nothing passes over it meanwhile, it carries again afterwards in both directions, and in the end every rank has done the
same operations, has found every element right, and exits with 0. The gaps are printed and judged by nobody.

Whatever happens, containers and networks are taken away.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.compose import cuts, engine
from tests.compose.cuts import Way
from tests.compose.engine import RANKS, Cluster, CommandFailed, Missing, run
from tests.compose.records import CutResult, RankFailed, Ranks, gap_ms, went_on

START_TIMEOUT_S: Final = 60.0
#: Each rank must have done so many operations before the first cut, and between two.
OPERATIONS_OF_CALM: Final = 50
CALM_S: Final = 1.2
#: How long a NIC is away, and after how much of that nothing may pass over it any more.
OUTAGE_S: Final = 2.0
FOUND_BY_S: Final = 1.0
#: A rank tells its counters five times a second.
REPORT_S: Final = 0.25
#: A link that flapped waits 0.25 s before it carries again, and twice as long each further time.
BACK_TIMEOUT_S: Final = 30.0
BACK_BYTES: Final = 4 << 20
STOP_TIMEOUT_S: Final = 30.0


def main() -> int:
    """The program."""
    signal.signal(signal.SIGTERM, _terminated)
    ranks = Ranks(RANKS)
    try:
        with cluster() as started_s, followed(ranks):
            results = stream(ranks)
    except Missing as missing:
        print(f"the compose test cannot run here: {missing}", file=sys.stderr)
        return 2
    except (RankFailed, CommandFailed, LookupError) as failed:
        before = f"\nand before: {failed.__context__!r}" if failed.__context__ else ""
        print(f"{ranks.account()}\n\nFAILED: {failed}{before}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; containers and networks are gone", file=sys.stderr)
        return 130
    report(ranks, results)
    print(f"{time.monotonic() - started_s:.0f} s from the start of the containers")
    return 0


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def cluster() -> Iterator[float]:
    """The containers, running; taken away at the end, which a second Ctrl-C does not interrupt."""
    here = Cluster(engine.look_round())
    with engine.alone():
        begin_s = time.monotonic()
        here.down()
        here.build()
        built_s = time.monotonic()
        print(f"image built in {built_s - begin_s:.1f} s", flush=True)
        try:
            here.up()
            print(f"{RANKS} containers up in {time.monotonic() - built_s:.1f} s", flush=True)
            yield built_s
        finally:
            handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
            here.down()
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def followed(ranks: Ranks) -> Iterator[None]:
    """The logs of all containers, read as they come."""
    followers = [
        subprocess.Popen(
            ["docker", "logs", "--follow", engine.container(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    threads = []
    for rank, follower in enumerate(followers):
        assert follower.stdout is not None
        threads.append(threading.Thread(target=ranks.follow, args=(rank, follower.stdout)))
        threads[-1].start()
    try:
        yield
    finally:
        for follower, thread in zip(followers, threads, strict=True):
            follower.kill()
            follower.wait()
            thread.join()


def stream(ranks: Ranks) -> list[CutResult]:
    """All cuts, then the end."""
    ranks.wait_until(lambda: all(record.is_ready for record in ranks.all), START_TIMEOUT_S, "all ranks connected")
    results = []
    for number, way in enumerate(cuts.WAYS):
        done = [record.operations for record in ranks.all]
        ranks.wait(CALM_S)
        ranks.wait_until(
            lambda done=done: all(  # type: ignore[misc]
                record.operations >= before + OPERATIONS_OF_CALM for record, before in zip(ranks.all, done, strict=True)
            ),
            START_TIMEOUT_S,
            "the ranks go on between cuts",
        )
        results.append(cut_and_restore(ranks, way, rank=(number + 1) % RANKS, nic=(number + 1) % 2))
    stop(ranks)
    return results


def cut_and_restore(ranks: Ranks, way: Way, rank: int, nic: int) -> CutResult:
    """Cut a NIC, see the ranks go on without it, give it back, see it carry."""
    record = ranks.all[rank]
    target = cuts.find(rank, nic)
    print(f"{way.name}: rank {rank}, NIC {nic} ({target.interface.name})", end=" ", flush=True)
    cut_s = time.monotonic()
    way.cut(target)
    ranks.wait(FOUND_BY_S + REPORT_S)
    moved = record.moved(nic)
    ranks.wait(OUTAGE_S - FOUND_BY_S)
    if record.moved(nic) != moved:
        raise RankFailed(f"{way.name}: rank {rank}'s NIC {nic} carried {moved} and then {record.moved(nic)} while cut")
    restored_s = time.monotonic()
    way.restore(target)
    ranks.wait_until(
        lambda: all(now > then + BACK_BYTES for now, then in zip(record.moved(nic), moved, strict=True)),
        BACK_TIMEOUT_S,
        f"{way.name}: rank {rank}'s NIC {nic} carries again",
    )
    back_s = time.monotonic()
    stuck = [other.rank for other in ranks.all if not went_on(other, cut_s, restored_s)]
    if stuck:
        raise RankFailed(f"{way.name}: ranks {stuck} did not go on while rank {rank}'s NIC {nic} was away")
    print(
        f"survived in {gap_ms(ranks.all, cut_s, back_s):.0f} ms, carries again {back_s - restored_s:.1f} s after",
        flush=True,
    )
    return CutResult(way.name, rank, nic, cut_s, restored_s, back_s)


def stop(ranks: Ranks) -> None:
    """One rank is told to stop; all must, after the same operation, with 0."""
    run("docker", "kill", "--signal", "INT", engine.container(0))
    ranks.wait_until(lambda: all(record.has_ended for record in ranks.all), STOP_TIMEOUT_S, "all ranks stop")
    codes = [int(run("docker", "wait", engine.container(rank))) for rank in range(RANKS)]
    if any(codes):
        raise RankFailed(f"exit codes of ranks 0 to {RANKS - 1}: {codes}")
    operations = [record.operations for record in ranks.all]
    if len(set(operations)) != 1:
        raise RankFailed(f"the ranks did different numbers of operations: {operations}")


def report(ranks: Ranks, results: list[CutResult]) -> None:
    """The table."""
    end_s = min(record.completions[-1] for record in ranks.all)
    print(f"\n{'cut':26}{'rank':>5}{'NIC':>5}{'gap, ms':>9}{'carries again, s':>18}{'gap then, ms':>14}")
    for cut in results:
        gap, then = gap_ms(ranks.all, cut.cut_s, end_s), gap_ms(ranks.all, cut.restored_s, end_s)
        back_s = cut.back_s - cut.restored_s
        print(f"{cut.way:26}{cut.rank:5}{cut.nic:5}{gap:9.1f}{back_s:18.1f}{then:14.1f}")
    print(f"{ranks.all[0].operations} all-reduces on each of {RANKS} ranks, every element of every result right")


if __name__ == "__main__":
    sys.exit(main())
