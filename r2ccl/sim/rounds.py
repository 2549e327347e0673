"""Work without end for a job: rounds of calls, drawn from a seed and a number, every element of every result compared.

A round is a program of mixed collectives, batches, objects and messages in the communicator of all ranks, and in some
rounds at the same time others in groups made for it, by ``split`` or ``new_group``, which are closed in the end. What
is right is known from the draw alone, as in the swarm; nothing is remembered from round to round, so it may go on for
ever. The ranks may be simulated or processes of their own: each needs its handle and nothing else.

Between two rounds all ranks must have met, or a message to any could be taken for one of the round before.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from r2ccl.communicator import Communicator
from r2ccl.errors import R2cclError
from r2ccl.sim.calls import Call, Kind
from r2ccl.sim.checkers import Answers, Complaints
from r2ccl.sim.performance import Room, Started, start
from r2ccl.sim.programs import Programs

#: Of the rounds, those with groups; of these, those that split.
GROUPS_SHARE: Final = 0.4
SPLIT_SHARE: Final = 0.5
IN_FLIGHT: Final = (1, 2, 4)
PROGRAMS: Final = 24
#: Chunks times ranks of a communicator's calls.
WORK: Final = 300


@dataclass(frozen=True, slots=True)
class Team:
    """A communicator of a round, and what is called in it."""

    members: tuple[int, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What one number means."""

    number: int
    #: Of its payloads.
    seed: int
    #: The first is that of all ranks.
    teams: tuple[Team, ...]
    in_flight: int
    #: By rank; (): the other teams are made by ``new_group``.
    colors: tuple[int | None, ...] = ()


@dataclass(slots=True)
class Tally:
    """What a rank has done so far."""

    operations: int = 0
    #: Called whenever an operation ended.
    ended: Callable[[], None] = field(default=lambda: None)


def draw_round(seed: int, number: int, ranks: int, chunk_bytes: int, bytes_max: int) -> Round:
    """The same on all ranks. After PROGRAMS rounds their calls come again, with other payloads: a program that varies
    its calls for ever never fills its caches of plans, and what they still take would hide what leaks."""
    rng = random.Random(f"round {number % PROGRAMS} of {seed}")
    everybody = tuple(range(ranks))
    members = [everybody]
    colors: tuple[int | None, ...] = ()
    if rng.random() < GROUPS_SHARE:
        if rng.random() < SPLIT_SHARE:
            colors = tuple(rng.choice((0, 0, 1, None)) for _ in everybody)
            members += [
                tuple(rank for rank in everybody if colors[rank] == color)
                for color in sorted({color for color in colors if color is not None})
            ]
        else:
            members.append(tuple(sorted(rng.sample(everybody, rng.randint(1, ranks)))))
    teams = tuple(Team(those, Programs(rng, len(those), chunk_bytes, WORK, bytes_max).program()) for those in members)
    payloads = random.Random(f"payloads of {number} of {seed}").getrandbits(48)
    return Round(number, payloads, teams, rng.choice(IN_FLIGHT), colors)


def answers_of(drawn: Round, complaints: Complaints) -> Answers:
    """What is right in a round. May be shared by ranks of one process."""
    sizes = tuple(len(team.members) for team in drawn.teams)
    return Answers(drawn.seed, sizes, tuple(team.calls for team in drawn.teams), complaints)


def digest_of(drawn: Round, answers: Answers) -> str:
    """Of all that all ranks must have alike to the last bit, though no exact number says which."""
    digest = hashlib.blake2b(digest_size=8)
    for (communicator, number, index, _), result in sorted(answers.digests.items()):
        call = drawn.teams[communicator].calls[number]
        if communicator == 0 and (call.calls[index] if call.calls else call).kind is Kind.ALL_REDUCE:
            digest.update(f"{number} {index} {result}\n".encode())
    return digest.hexdigest()


class Player:
    """Plays one rank's part of a round."""

    def __init__(self, drawn: Round, answers: Answers, complaints: Complaints, tally: Tally) -> None:
        self._drawn = drawn
        self._answers = answers
        self._complaints = complaints
        self._tally = tally
        self._given_back: list[tuple[str, Room]] = []

    async def play(self, world: Communicator) -> None:
        """From the first call to the last close. Raises what a call raises."""
        handles = {0: world}
        for number, handle in await self._groups(world):
            handles[number] = handle
        await asyncio.gather(*(self._program(number, handle) for number, handle in handles.items()))
        for number, handle in handles.items():
            if number:
                await handle.close()

    def look_back(self) -> None:
        """When all ranks are done: nobody has written to what was given back."""
        for where, room in self._given_back:
            if not room.is_as_rewritten:
                self._complaints.add(f"{where}: its memory was written after it had been given back")

    async def _groups(self, world: Communicator) -> list[tuple[int, Communicator]]:
        drawn = self._drawn
        mine = [(n, team) for n, team in enumerate(drawn.teams) if n and world.rank in team.members]
        if drawn.colors:
            made = await world.split(drawn.colors[world.rank])
            self._tally.operations += 1
            if (made is None) is bool(mine) or (made is not None and made.members != mine[0][1].members):
                self._complaints.add(f"rank {world.rank} round {drawn.number}: a split gave {made!r} instead of {mine}")
            return [] if made is None else [(mine[0][0], made)]
        return [(number, await world.new_group(list(team.members))) for number, team in mine]

    async def _program(self, communicator: int, handle: Communicator) -> None:
        team = self._drawn.teams[communicator]
        pending: deque[tuple[int, list[Started]]] = deque()
        for number, call in enumerate(team.calls):

            def given(part: Call, index: int, number: int = number) -> Any:
                return self._answers.given(communicator, number, handle.rank, part, index)

            pending.append((number, start(handle, call, given)))
            if len(pending) >= self._drawn.in_flight:
                await self._end(communicator, handle, *pending.popleft())
        while pending:
            await self._end(communicator, handle, *pending.popleft())

    async def _end(self, communicator: int, handle: Communicator, number: int, started: list[Started]) -> None:
        for one in started:
            where = (
                f"rank {handle.rank} communicator {communicator} round {self._drawn.number} call {number} {one.call}"
            )
            try:
                returned = await one.work
            except R2cclError as error:
                error.add_note(f"{where}: {one.work!r}")
                raise
            self._tally.operations += 1
            self._tally.ended()
            self._compare(communicator, handle, number, one, returned)
            for room in one.rooms:
                if complaint := room.complaint():
                    self._complaints.add(f"{where}: {complaint}")
                room.rewrite()
                self._given_back.append((where, room))
            await asyncio.sleep(0)  # comparing takes a moment, and others want the loop, too

    def _compare(self, communicator: int, handle: Communicator, number: int, one: Started, returned: Any) -> None:
        if one.receives is not None:
            source, x = one.work.source, one.rooms[0].array
            self._answers.received(communicator, number, handle.rank, one.receives, source, x)
        elif one.call.kind is not Kind.MESSAGES:
            result = one.result(returned)
            self._answers.ended(communicator, number, handle.rank, one.call, one.index, result)
