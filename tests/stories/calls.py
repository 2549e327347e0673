"""The part of a stage that makes worlds and calls, and sees how they end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from r2ccl.actors.work import Work
from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.errors import R2cclError
from r2ccl.ids import WORLD_PARENT, communicator_id
from r2ccl.sim.world import Shape, World
from r2ccl.telemetry.event_log import Event, EventLog
from r2ccl.transport.memory_path import Model
from r2ccl.vocabulary import ANY
from tests.stories import wiretap
from tests.stories.script import BadStory, Options, parse_options, quantity

Values = npt.NDArray[np.uint32]
REWRITTEN = 0xEEEEEEEE
#: What ranks say to one another when they have just connected is no part of any story.
SETTLE_S = 0.001


class ToldLog(EventLog):
    """A rank's event log that tells the stage."""

    def __init__(self, stage: Calls, rank: int) -> None:
        super().__init__(stage.world_clock)
        self._stage, self._rank = stage, rank

    def record(self, name: str, /, *, level: int = 20, **fields: object) -> Event:
        event = super().record(name, level=level, **fields)
        self._stage.tell(f"rank {self._rank}", str(event))
        return event


@dataclass(slots=True, eq=False)
class Call:
    """A collective that one rank called, and what must come of it."""

    rank: int
    name: str
    work: Work
    buffer: Values
    expected: Values
    rewrite: bool
    #: Of a receive: where it looks up what it should have got.
    channel: tuple[str, int, int] | None = None


@dataclass(slots=True)
class Calls:
    """A world, and everything told about it so far."""

    one_sided: bool
    lines: list[str] = field(default_factory=list)
    watchers: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    calls: list[Call] = field(default_factory=list)
    _world: World | None = None
    _communicators: dict[str, list[Communicator]] = field(default_factory=dict)
    #: Members of groups that each member makes for itself.
    _groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _made: dict[tuple[str, int], Communicator] = field(default_factory=dict)
    #: (communicator, source, target, tag) -> what was sent.
    _sent: dict[tuple[str, int, int, int], list[Values]] = field(default_factory=dict)
    _connected: bool = False
    _began_s: float = 0.0
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    _counted: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)
    #: Whose last message said what.
    _said: dict[str, str] = field(default_factory=dict)
    #: Letters of communicators that are not A.
    _letters: dict[int, str] = field(default_factory=dict)

    @property
    def world(self) -> World:
        if self._world is None:
            raise BadStory("the first command makes the world")
        return self._world

    @property
    def world_clock(self) -> Any:
        loop = asyncio.get_running_loop()
        return _Clock(loop)

    def tell(self, who: str, what: str) -> None:
        if self._connected:
            passed_s = asyncio.get_running_loop().time() - self._began_s
            self.lines.append(f"{passed_s * 1e3:12.3f}  {who:<12}{what}".rstrip())

    def hear(self, who: str, what: str) -> None:
        """A control message."""
        if self._said.get(who) != what:
            self._said[who] = what
            self.tell(who, what)

    def end(self) -> None:
        """Nothing more is told, and nothing goes on."""
        self._connected = False
        for task in self._tasks:
            task.cancel()
        if self._world is not None:
            for members in self._communicators.values():
                for member in members:
                    member.abort()

    # The world.

    async def make(self, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        shape: dict[str, Any] = {name: int(given.pop(name)) for name in ("ranks", "nics", "spares") if name in given}
        model = Model(bandwidth_bytes_s=quantity(given.pop("bandwidth"))) if "bandwidth" in given else Model()
        usual = Settings(backup_paths=0)
        settings = usual.replace(**{name: type(getattr(usual, name))(value) for name, value in given.items()})
        self._world = World(
            Shape(**shape, one_sided=self.one_sided, settings=settings, model=model),
            make_log=lambda rank: ToldLog(self, rank),
        )
        wiretap.listen(self._world, self.hear, self._letters)
        await self._world.start()
        self._communicators["A"] = self._world.communicators
        await asyncio.sleep(SETTLE_S)
        self._began_s = self._world.clock.now()
        self._connected = True
        self.tell("*", f"world {' '.join(words)}")
        self.count()

    def communicator(self, name: str, rank: int) -> Communicator:
        """By letter. All but A and groups are made, on all ranks, when they are first named."""
        if (name, rank) in self._made:
            return self._made[name, rank]
        if name in self._groups:
            raise BadStory(f"rank {rank} has no {name}")
        if name not in self._communicators:
            members = tuple(range(self.world.shape.ranks))
            number = communicator_id(WORLD_PARENT, 0, ord(name))
            self._letters[number] = name
            self._communicators[name] = [Communicator(runtime, number, members) for runtime in self.world.runtimes]
        return self._communicators[name][rank]

    # Calls.

    def truth(self, rank: int, count: int) -> Values:
        """What a rank puts in: different in every element, and sums do not overflow."""
        return np.arange(count, dtype=np.uint32) * np.uint32(7) + np.uint32(1000 * rank)

    def options(self, words: list[str]) -> Options:
        """Who calls: all members, if it isn't said."""
        options = parse_options(words, self.world.shape.ranks)
        if "on" not in words and options.communicator in self._groups:
            options.ranks = list(self._groups[options.communicator])
        return options

    async def group(self, words: list[str]) -> None:
        name, members = words[0], tuple(map(int, words[1:]))
        self._groups[name] = members

    async def _member(self, name: str, rank: int) -> Communicator:
        """As :meth:`communicator`, and made first, if it is a group that the rank has not made."""
        if name in self._groups and (name, rank) not in self._made:
            handle: Communicator = await self._communicators["A"][rank].new_group(self._groups[name])
            self._name(name, rank, handle)
        return self.communicator(name, rank)

    def _name(self, name: str, rank: int, handle: Communicator) -> None:
        self._made[name, rank] = handle
        self._letters[handle._coordinator.communicator] = name

    async def split(self, words: list[str]) -> None:
        first, colors = words[0], list(map(int, words[1:]))
        for color in set(colors):
            name = chr(ord(first) + color)
            self._groups[name] = tuple(rank for rank, other in enumerate(colors) if other == color)
        for rank, color in enumerate(colors):
            work = self._communicators["A"][rank].split(color)
            task = self.watchers.create_task(self._see_split(chr(ord(first) + color), rank, work))
            self._tasks.append(task)

    async def _see_split(self, name: str, rank: int, work: Work) -> None:
        try:
            self._name(name, rank, await work)
        except R2cclError as error:
            self.tell(f"rank {rank}", f"split failed: {type(error).__name__}: {error}")
        else:
            self.tell(f"rank {rank}", f"has {name}, of ranks {list(self._made[name, rank].members)}")

    async def send(self, words: list[str]) -> None:
        count, options = int(quantity(words[0])) // 4, self.options(words[1:])
        source, target = options.source, options.target
        member = await self._member(options.communicator, source)
        sent = self._sent.setdefault((options.communicator, source, target, options.tag), [])
        buffer = self.truth(source, count) + np.uint32(100_000 * (len(sent) + 1))
        sent.append(buffer.copy())
        work = member.send(buffer, member.members.index(target), options.tag, timeout=options.timeout_s)
        self.watch(source, options, work, buffer, buffer.copy())

    async def recv(self, words: list[str]) -> None:
        count, options = int(quantity(words[0])) // 4, self.options(words[1:])
        for rank in options.ranks:
            member = await self._member(options.communicator, rank)
            source = ANY if options.source < 0 else member.members.index(options.source)
            buffer = np.zeros(count, np.uint32)
            work = member.recv(buffer, source, options.tag, timeout=options.timeout_s)
            self.watch(rank, options, work, buffer, buffer)
            self.calls[-1].channel = (options.communicator, rank, options.tag)

    def _received(self, call: Call) -> str:
        """Look up what a receive should have got, and tell from whom."""
        if call.channel is None:
            return ""
        name, rank, tag = call.channel
        assert call.work.source is not None
        source = self.communicator(name, rank).members[call.work.source]
        call.expected = self._sent[name, source, rank, tag][call.work.operation]
        return f" message {call.work.operation} of rank {source},"

    async def all_reduce(self, words: list[str]) -> None:
        count, options = int(quantity(words[0])) // 4, self.options(words[1:])
        members = self._groups.get(options.communicator, tuple(range(self.world.shape.ranks)))
        expected = sum((self.truth(rank, count) for rank in members), np.zeros(count, np.uint32))
        for rank in options.ranks:
            buffer = self.truth(rank, count)
            member = await self._member(options.communicator, rank)
            self.watch(rank, options, member.all_reduce(buffer, timeout=options.timeout_s), buffer, expected)

    async def broadcast(self, words: list[str]) -> None:
        count, options = int(quantity(words[0])) // 4, parse_options(words[1:], self.world.shape.ranks)
        expected = self.truth(options.root, count)
        for rank in options.ranks:
            buffer = expected.copy() if rank == options.root else np.zeros(count, np.uint32)
            member = self.communicator(options.communicator, rank)
            work = member.broadcast(buffer, options.root, timeout=options.timeout_s)
            self.watch(rank, options, work, buffer, expected)

    async def shrink(self, words: list[str]) -> None:
        """All of a list of ranks go on in what is called so from then on."""
        name, options = words[0], parse_options(words[1:], self.world.shape.ranks)
        for rank in options.ranks:
            work = self.communicator(options.communicator, rank).shrink(timeout=options.timeout_s)
            self._tasks.append(self.watchers.create_task(self._see_shrunk(name, rank, work)))

    async def _see_shrunk(self, name: str, rank: int, work: Work) -> None:
        try:
            handle: Communicator = await work
        except R2cclError as error:
            self.tell(f"rank {rank}", f"shrink() failed: {type(error).__name__}: {error}")
            return
        self._name(name, rank, handle)
        self._groups[name] = handle.members
        self.tell(f"rank {rank}", f"has {name}, of ranks {list(handle.members)}")

    async def barrier(self, words: list[str]) -> None:
        options, nothing = parse_options(words, self.world.shape.ranks), np.zeros(0, np.uint32)
        for rank in options.ranks:
            member = self.communicator(options.communicator, rank)
            self.watch(rank, options, member.barrier(timeout=options.timeout_s), nothing, nothing)

    def watch(self, rank: int, options: Options, work: Work, buffer: Values, expected: Values) -> None:
        of = "" if options.communicator == "A" else f" of {options.communicator}"
        name = f"operation {work.operation}{of}, {work.call},"
        if work.operation < 0:
            name = f"{work.call}{of}"
        call = Call(rank, name, work, buffer, expected, options.rewrite)
        self.calls.append(call)
        self._tasks.append(self.watchers.create_task(self.see_end(call)))

    async def see_end(self, call: Call) -> None:
        who = f"rank {call.rank}"
        try:
            await call.work
        except R2cclError as error:
            if call.rewrite:
                call.buffer[:] = REWRITTEN
            self.tell(who, f"{call.name} failed: {type(error).__name__}: {error}")
            if call.rewrite:
                self.tell(who, "its caller has rewritten the buffer")
            return
        got = self._received(call)
        wrong = int(np.count_nonzero(call.buffer != call.expected))
        self.tell(who, f"{call.name}{got} is {f'WRONG in {wrong} elements' if wrong else 'done, and right'}")

    # What went over the wire.

    def count(self) -> None:
        """Chunks since the last count, per rank and NIC."""
        for rank, runtime in enumerate(self.world.runtimes):
            nics: dict[str, Any] = runtime.shared.counters.snapshot()["nics"]
            parts = []
            for nic, counters in sorted(nics.items()):
                before = self._counted.get((rank, nic), {})
                self._counted[rank, nic] = counters
                parts += _chunks(nic, {name: value - before.get(name, 0) for name, value in counters.items()})
            if parts:
                self.tell(f"rank {rank}", f"chunks: {'; '.join(parts)}")


def _chunks(nic: str, counters: dict[str, int]) -> list[str]:
    words = [
        f"{counters[f'{name}_chunks']} {name}"
        for name in ("sent", "resent", "received", "duplicate", "spoiled")
        if counters[f"{name}_chunks"]
    ]
    return [f"{nic} {', '.join(words)}"] if words else []


class _Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time
