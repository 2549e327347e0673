"""What the ranks of a benchmark are told and what they answer, and how a peer's rank plays a turn.

All ranks of all libraries are started once and parked: each waits in a read from its control connection, a Unix socket
in a directory of the user's own. A turn is: some operations to warm up, a barrier, the timed ones back to back, then
the checked ones. The end of the control connection means that the benchmark is over, or gone.

Imported by peers too, in interpreters that have no r2ccl: standard library and numpy only.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from r2ccl.cli.bench_collectives import Form, Shape
from r2ccl.cli.bench_data import Buffers, Exercise, make_buffers


@dataclass(frozen=True, slots=True)
class Turn:
    """What all ranks of one library are told to do."""

    collective: str
    form: Form
    count: int
    dtype: str
    op: str
    root: int
    warmup: int
    iterations: int
    #: How many operations are checked.
    checks: int
    seed: int
    #: Elements of each checked result that are spoiled, to see that the check sees it.
    damage: int = 0
    #: So many operations are started, each on memory of its own, and then waited for: that is one iteration.
    window: int = 1
    #: Meanwhile a ticker with this period runs on the caller's loop, and its gaps are told; 0: none.
    tick_s: float = 0.0

    def shape(self, rank: int, ranks: int) -> Shape:
        """The call as one rank makes it."""
        return Shape(self.collective, self.form, self.count, self.dtype, self.op, self.root, rank, ranks)

    def damaged(self, damage: int) -> Turn:
        """The same with a damage."""
        return replace(self, damage=damage)

    def as_line(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str | bytes) -> Turn:
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank has to say about a turn."""

    #: When each timed operation began, on the clock that all processes of a machine share.
    starts_s: list[float] = field(default_factory=list)
    #: How long each took.
    times_s: list[float] = field(default_factory=list)
    wrong: int = 0
    #: Why this library cannot do it; then the rest means nothing.
    error: str = ""
    #: Processor time that the timed operations took, of all threads.
    cpu_s: float = 0.0
    #: Between two ticks, where there was a ticker.
    gaps_s: list[float] = field(default_factory=list)

    def as_line(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, line: str | bytes) -> Answer:
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Hello:
    """How a rank introduces itself, and is then introduced to the others."""

    rank: int
    pid: int
    #: Such as its addresses and versions, for the table's head.
    about: str = ""
    #: Where its peers find it, where the library does not see to that itself.
    port: int = 0
    #: Why this rank cannot take part.
    error: str = ""

    def as_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """What a peer's rank finds on its command line, as JSON."""

    control: str
    #: None where the library says.
    rank: int | None
    ranks: int

    def as_argument(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> PeerOptions:
        return cls(**json.loads(argument))


class Unsupported(Exception):
    """The library has no such operation, or not for this dtype. The message says what and why."""


class Library(Protocol):
    """What a peer must be able to do. Everything waits."""

    rank: int
    ranks: int

    def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
        """The operation, ready to be called any number of times. Raises :class:`Unsupported`."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


@runtime_checkable
class WindowedLibrary(Protocol):
    """What a peer that can have several operations in flight can do besides."""

    def prepare_window(self, shape: Shape, window: Sequence[Buffers]) -> Callable[[], Any]:
        """Starts one operation for each of the buffers, and waits for all. Raises :class:`Unsupported`."""


class Control:
    """A peer's end of the control connection. Use it as a context."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def introduce(self, hello: Hello) -> list[dict[str, Any]]:
        """Say who we are; returns what all have said, in order of rank, and a token that only they know."""
        self._socket.sendall(hello.as_line().encode())
        introductions = json.loads(self._lines.readline() or "[]")
        if not introductions:
            raise SystemExit("the benchmark is gone")
        return list(introductions)

    def refuse(self, rank: int, why: str) -> None:
        """Say that this rank cannot take part, and wait to be let go."""
        self._socket.sendall(Hello(rank, 0, error=why).as_line().encode())
        self._lines.readline()

    def turns(self) -> Iterator[Turn]:
        """One after the other, until the benchmark ends."""
        for line in self._lines:
            yield Turn.parse(line)

    def answer(self, answer: Answer) -> None:
        self._socket.sendall(answer.as_line().encode())


async def tick(period_s: float, gaps_s: list[float]) -> None:
    """What a server's other work is to the loop: something that wants to run every few milliseconds."""
    last_s = time.perf_counter()
    while True:
        await asyncio.sleep(period_s)
        now_s = time.perf_counter()
        gaps_s.append(now_s - last_s)
        last_s = now_s


def timed(operation: Callable[[], object], iterations: int) -> Answer:
    """The timed part, back to back."""
    starts_s, times_s = [], []
    cpu_before_s = time.process_time()
    for _ in range(iterations):
        started_s = time.perf_counter()
        operation()
        times_s.append(time.perf_counter() - started_s)
        starts_s.append(started_s)
    return Answer(starts_s, times_s, cpu_s=time.process_time() - cpu_before_s)


def exercises(turn: Turn, shape: Shape, check: int) -> list[Exercise]:
    """The data of one checked iteration, one for each operation of the window."""
    return [Exercise(shape, turn.seed + check * turn.window + place) for place in range(turn.window)]


def _prepare(library: Library, shape: Shape, window: Sequence[Buffers]) -> Callable[[], Any]:
    if len(window) == 1:
        return library.prepare(shape, window[0])
    if not isinstance(library, WindowedLibrary):
        raise Unsupported("it has one operation in flight")
    return library.prepare_window(shape, window)


def play(library: Library, turn: Turn) -> Answer:
    """One turn of a library that waits."""
    shape = turn.shape(library.rank, library.ranks)
    if turn.tick_s:
        return Answer(error="a library that waits has no loop for a ticker")
    try:
        window = [make_buffers(shape) for _ in range(turn.window)]
        for buffers in window:
            buffers.zero()
        operation = _prepare(library, shape, window)
    except ImportError as missing:
        return Answer(error=f"no {shape.dtype} in its interpreter ({missing})")
    except Unsupported as why:
        return Answer(error=str(why))
    for _ in range(turn.warmup):
        operation()
    library.barrier()
    times = timed(operation, turn.iterations)
    wrong = 0
    for check in range(turn.checks):
        expected = exercises(turn, shape, check)
        for exercise, buffers in zip(expected, window, strict=True):
            exercise.fill(buffers)
        operation()
        for exercise, buffers in zip(expected, window, strict=True):
            wrong += exercise.wrong_elements(buffers, damage=turn.damage)
    return replace(times, wrong=wrong)


def serve(library: Library, control: Control) -> None:
    """Play until the benchmark ends."""
    for turn in control.turns():
        control.answer(play(library, turn))
