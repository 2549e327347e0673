"""Plays a story: commands of a text file on a simulated world, and what happens as a transcript.

A story file has three parts: a comment that says what is shown and why, the commands, and after a line ``----`` exactly
what they lead to. In the transcript ``*`` marks a command, ``rank 1`` a change of state there, ``rank 0 -> 1`` a
control message at the moment it is heard. Left out, or nobody could read it: messages that say the same as the one
before between the two, beats and acknowledgements. Chunks are counted at the end of each ``run``. Times are virtual, in
milliseconds since all had connected. Where backup_paths is not given there are none, as on most networks.

    world ranks=2 nics=2 spares=0 bandwidth=100MB/s silence_s=0.06   first; any setting by name
    all_reduce 4MiB [on 0 2] [of B] [timeout 20ms] [then rewrite]    called, not waited for
    broadcast 4MiB from 1 ...                                        as above
    barrier ...
    send 4MiB from 0 to 1 [tag 7] [of B]                             each message says something else
    recv 4MiB on 1 from 0 | any [tag 7] [of B]
    group B 0 1                                                      each of these makes it when it first calls in it
    split B 0 0 1 1                                                  all call it, with these colors: 0 is B, 1 is C
    shrink B on 0 2                                                  they go on in B without those who are lost
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
from dataclasses import dataclass

import numpy as np

from r2ccl.protocol.wire import Header, Kind, checksum, pack_header
from r2ccl.sim.loop import run
from r2ccl.transport.memory_path import PortName
from tests.stories.calls import REWRITTEN, Call, Calls
from tests.stories.script import BadStory, Story, quantity


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


@dataclass(slots=True)
class Stage(Calls):
    """A world, and everything told about it so far; and what befalls it."""

    async def obey(self, line: str) -> None:
        """One command."""
        words = line.split()
        command: Callable[[Stage, list[str]], Awaitable[None]] | None = COMMANDS.get(words[0])
        if command is None:
            raise BadStory(f"no command is called {words[0]!r}: {line}")
        self.tell("*", line)
        await command(self, words[1:])

    # Time, and what went over the wire in it.

    async def run(self, words: list[str]) -> None:
        await asyncio.sleep(quantity(words[0]))
        self.count()

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


def _nic(text: str) -> PortName:
    rank, nic = text.split(".")
    return int(rank), int(nic)


COMMANDS: dict[str, Callable[[Stage, list[str]], Awaitable[None]]] = {
    "world": Stage.make,
    "all_reduce": Stage.all_reduce,
    "broadcast": Stage.broadcast,
    "barrier": Stage.barrier,
    "send": Stage.send,
    "recv": Stage.recv,
    "group": Stage.group,
    "split": Stage.split,
    "shrink": Stage.shrink,
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
