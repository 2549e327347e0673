"""Plays a story: commands of a text file on a simulated world, and what happens as a transcript.

A story file has three parts: a comment that says what is shown and why, the commands, and after a line ``----`` exactly
what they lead to. In the transcript ``*`` marks a command, ``rank 1`` a change of state there, ``rank 0 -> 1`` a
control message at the moment it is heard. Left out, or nobody could read it: messages that say the same as the one
before between the two, beats and acknowledgements. Chunks are counted at the end of each ``run``. Times are virtual, in
milliseconds since all had connected.

    world ranks=2 nics=2 spares=0 bandwidth=100MB/s silence_s=0.06   first; any setting by name
    all_reduce 4MiB [on 0 2] [of B] [timeout 20ms] [then rewrite]    called, not waited for
    broadcast 4MiB from 1 ...                                        as above
    barrier ...
    run 50ms
    cut | restore | drop rank 1 nic 0                                drop: silently
    drop | restore link 0.0 1.0                                      between two NICs
    slow link 0.0 1.0 to 1MB/s                                       one way
    spoil link 0.0 1.0                                               one bit of the next chunk, one way
    kill 2 · freeze 1 for 30s
    hedge 0 -> 1 on nic 1                                            rank 0 sends a twin of its oldest chunk by nic 1
    close
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from r2ccl.actors.work import Work
from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.errors import R2cclError
from r2ccl.ids import WORLD_PARENT, communicator_id
from r2ccl.protocol.wire import Header, Kind, checksum, pack_header
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.telemetry.event_log import Event, EventLog
from r2ccl.transport.memory_path import Model, PortName
from tests.stories import wiretap
from tests.stories.script import BadStory, Options, Story, parse_options, quantity

Values = npt.NDArray[np.uint32]
REWRITTEN = 0xEEEEEEEE
#: What ranks say to one another when they have just connected is no part of any story.
SETTLE_S = 0.001


def play(story: Story, one_sided: bool = False) -> str:
    """The transcript of a story. Raises what a broken world raises."""

    async def main() -> str:
        stage = Stage(one_sided)
        async with asyncio.TaskGroup() as stage.watchers:
            try:
                for line in story.commands:
                    await stage.obey(line)
            finally:
                stage.end()
        return "".join(f"{line}\n" for line in stage.lines)

    return run(main())


class ToldLog(EventLog):
    """A rank's event log that tells the stage."""

    def __init__(self, stage: Stage, rank: int) -> None:
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


@dataclass(slots=True)
class Stage:
    """A world, and everything told about it so far."""

    one_sided: bool
    lines: list[str] = field(default_factory=list)
    watchers: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    calls: list[Call] = field(default_factory=list)
    _world: World | None = None
    _communicators: dict[str, list[Communicator]] = field(default_factory=dict)
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

    async def obey(self, line: str) -> None:
        """One command."""
        words = line.split()
        command: Callable[[Stage, list[str]], Awaitable[None]] | None = COMMANDS.get(words[0])
        if command is None:
            raise BadStory(f"no command is called {words[0]!r}: {line}")
        self.tell("*", line)
        await command(self, words[1:])

    # The world.

    async def make(self, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        shape: dict[str, Any] = {name: int(given.pop(name)) for name in ("ranks", "nics", "spares") if name in given}
        model = Model(bandwidth_bytes_s=quantity(given.pop("bandwidth"))) if "bandwidth" in given else Model()
        settings = Settings().replace(**{name: float(value) for name, value in given.items()})
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
        """By letter. All but A are made, on all ranks, when they are first named."""
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

    async def all_reduce(self, words: list[str]) -> None:
        count, options = int(quantity(words[0])) // 4, parse_options(words[1:], self.world.shape.ranks)
        expected = sum((self.truth(rank, count) for rank in range(self.world.shape.ranks)), np.zeros(count, np.uint32))
        for rank in options.ranks:
            buffer = self.truth(rank, count)
            member = self.communicator(options.communicator, rank)
            self.watch(rank, options, member.all_reduce(buffer, timeout=options.timeout_s), buffer, expected)

    async def broadcast(self, words: list[str]) -> None:
        count, options = int(quantity(words[0])) // 4, parse_options(words[1:], self.world.shape.ranks)
        expected = self.truth(options.root, count)
        for rank in options.ranks:
            buffer = expected.copy() if rank == options.root else np.zeros(count, np.uint32)
            member = self.communicator(options.communicator, rank)
            work = member.broadcast(buffer, options.root, timeout=options.timeout_s)
            self.watch(rank, options, work, buffer, expected)

    async def barrier(self, words: list[str]) -> None:
        options, nothing = parse_options(words, self.world.shape.ranks), np.zeros(0, np.uint32)
        for rank in options.ranks:
            member = self.communicator(options.communicator, rank)
            self.watch(rank, options, member.barrier(timeout=options.timeout_s), nothing, nothing)

    def watch(self, rank: int, options: Options, work: Work, buffer: Values, expected: Values) -> None:
        of = "" if options.communicator == "A" else f" of {options.communicator}"
        name = f"operation {work.operation}{of}, {work.call},"
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
        wrong = int(np.count_nonzero(call.buffer != call.expected))
        self.tell(who, f"{call.name} is {f'WRONG in {wrong} elements' if wrong else 'done, and right'}")

    # Time, and what went over the wire in it.

    async def run(self, words: list[str]) -> None:
        await asyncio.sleep(quantity(words[0]))
        self.count()

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

    # Faults.

    async def fault(self, verb: str, words: list[str]) -> None:
        fabric = self.world.fabric
        match verb, words:
            case (("cut" | "restore" | "drop"), ["rank", rank, "nic", nic]):
                act = {"cut": fabric.cut, "restore": fabric.restore, "drop": fabric.silent_drop}[verb]
                act((int(rank), int(nic)))
            case (("drop" | "restore"), ["link", one, other]):
                (fabric.silent_drop_link if verb == "drop" else fabric.restore_link)(_nic(one), _nic(other))
            case "slow", ["link", one, other, "to", speed]:
                fabric.path(_nic(one), _nic(other)).bandwidth_bytes_s = quantity(speed)
            case "spoil", ["link", one, other]:
                self._spoil(_nic(one), _nic(other))
            case _:
                raise BadStory(f"{verb} what? {' '.join(words)}")

    def _spoil(self, source: PortName, target: PortName) -> None:
        def next_chunk(one: PortName, other: PortName, header: Header) -> bool:
            hit = (one, other, header.kind) == (source, target, Kind.CHUNK)
            if hit:
                undo()
            return hit

        undo = self.world.fabric.corrupt(next_chunk)

    async def kill(self, words: list[str]) -> None:
        self.world.fabric.kill(int(words[0]))

    async def fork(self, words: list[str]) -> None:
        """A worker of a rank, made by Python, so that its hook closes what it inherited; or by others (``foreign``)."""
        match words:
            case [rank]:
                self.world.fabric.fork(int(rank))
                for port in self.world.runtimes[int(rank)].ports:
                    port.device.close_in_child()
            case [rank, "foreign"]:
                self.world.fabric.fork(int(rank))
            case _:
                raise BadStory(f"fork whom, and how? {' '.join(words)}")

    async def freeze(self, words: list[str]) -> None:
        match words:
            case [rank, "for", duration]:
                self.world.fabric.freeze(int(rank))
                self.world.loop.call_later(quantity(duration), self.thaw, int(rank))
            case _:
                raise BadStory(f"freeze whom for how long? {' '.join(words)}")

    def thaw(self, rank: int) -> None:
        self.tell("*", f"rank {rank} goes on")
        self.world.fabric.thaw(rank)

    async def hedge(self, words: list[str]) -> None:
        match words:
            case [source, "->", target, "on", "nic", nic]:
                self._send_twin(int(source), int(target), int(nic))
            case _:
                raise BadStory(f"hedge what? {' '.join(words)}")

    def _send_twin(self, source: int, target: int, nic: int) -> None:
        """The oldest chunk on any other lane goes out once more, as a sender would that suspects its path."""
        runtime = self.world.runtimes[source]
        link = runtime.ports[nic].links[target, nic]
        lanes = [lane for lane in runtime.courier.lanes[target] if lane.link is not link]
        parcel = next(iter(lanes[0].outstanding))
        header = pack_header(
            Kind.CHUNK, 5, len(parcel.payload), parcel.communicator, parcel.operation, parcel.step, source, target,
            parcel.chunk, parcel.fingerprint, 0, checksum(parcel.payload),
        )  # fmt: skip
        assert link.bulk is not None
        link.bulk.send(header, parcel.payload)
        self.tell(f"rank {source}", f"sends a twin of {parcel!r} on nic{nic}")

    async def unmixed(self, words: list[str]) -> None:
        """Rule 7's promise: whatever else they hold, no rank but the rewriter holds a rewritten element."""
        for call in self.calls:
            if not call.rewrite:
                self.tell(f"rank {call.rank}", _origin(call))

    async def close(self, words: list[str]) -> None:
        await asyncio.gather(*(member.close() for member in self._communicators["A"]))
        self.tell("*", "all have closed")


def _origin(call: Call) -> str:
    right = int(np.count_nonzero(call.buffer == call.expected))
    rewritten = int(np.count_nonzero(call.buffer == REWRITTEN))
    return f"has {right} elements of the root, {len(call.buffer) - right - rewritten} untouched, {rewritten} rewritten"


def _chunks(nic: str, counters: dict[str, int]) -> list[str]:
    words = [
        f"{counters[f'{name}_chunks']} {name}"
        for name in ("sent", "resent", "received", "duplicate", "spoiled")
        if counters[f"{name}_chunks"]
    ]
    return [f"{nic} {', '.join(words)}"] if words else []


def _nic(text: str) -> PortName:
    rank, nic = text.split(".")
    return int(rank), int(nic)


class _Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time


COMMANDS: dict[str, Callable[[Stage, list[str]], Awaitable[None]]] = {
    "world": Stage.make,
    "all_reduce": Stage.all_reduce,
    "broadcast": Stage.broadcast,
    "barrier": Stage.barrier,
    "run": Stage.run,
    "cut": lambda stage, words: stage.fault("cut", words),
    "restore": lambda stage, words: stage.fault("restore", words),
    "drop": lambda stage, words: stage.fault("drop", words),
    "slow": lambda stage, words: stage.fault("slow", words),
    "spoil": lambda stage, words: stage.fault("spoil", words),
    "kill": Stage.kill,
    "fork": Stage.fork,
    "freeze": Stage.freeze,
    "hedge": Stage.hedge,
    "unmixed": Stage.unmixed,
    "close": Stage.close,
}
