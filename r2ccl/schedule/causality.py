"""Which transfer is surely over when another begins: the happens-before relation of a schedule, as bit masks.

Only receives need nodes. The *event* of transfer i is "its target has applied all of it"; bit i of a mask stands for
it. A send begins after the receives that it lists; a receive is applied after the receives that it lists and after the
matching send began, for bytes cannot arrive before they left. Nothing else orders anything: not the position in a
program, not the number of a step, not two transfers between the same two ranks.

**Why whole receives are enough, though the runtime waits chunk by chunk.** A wait between equal ranges holds for each
chunk alone: chunk c of the one before chunk c of the other. Any other wait is for the whole receive, and matching sends
and receives have equal ranges. So a path between two events either keeps one range all along, and then orders each
chunk, hence each element, with itself; or it passes a whole wait, and then orders everything before with everything
behind. Either way a path X -> Y orders X's part of an element before Y's part of the same element, which is all that
the rules about values, overwriting and arrival ask. Conversely each path between chunks projects to one of these, and
a cycle among chunks to a cycle here (and back: a cycle without a whole wait returns to the chunk it came from). So this
graph is acyclic exactly if the graph of chunks is. A message without elements counts as one chunk, and so does one of
several segments, whose range here is the list of them: whatever waits for it waits for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from r2ccl.schedule.ir import Program, Receive, Segment, Send


class ScheduleError(ValueError):
    """A schedule is wrong. Names where, as far as it has a place: rank, step, and segment ``(start, stop)``.

    Nothing was executed.
    """

    def __init__(
        self, message: str, rank: int | None = None, step: int | None = None, segment: tuple[int, int] | None = None
    ) -> None:
        self.rank = rank
        self.step = step
        self.segment = segment
        place = [f"rank {rank}"] if rank is not None else []
        place += [f"step {step}"] if step is not None else []
        place += [f"segment [{segment[0]}:{segment[1]})"] if segment is not None else []
        super().__init__(f"{', '.join(place)}: {message}" if place else message)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A send and the receive that matches it; the two indices lead back into the two programs."""

    step: int
    source: int
    target: int
    start: int
    stop: int
    send_index: int
    receive_index: int
    also: tuple[Segment, ...] = ()

    @property
    def segment(self) -> Segment:
        """The first one, which names the place."""
        return self.start, self.stop

    @property
    def segments(self) -> tuple[Segment, ...]:
        return (self.segment, *self.also)

    def __str__(self) -> str:
        return f"step {self.step} from rank {self.source} to rank {self.target} {in_words(self.segments)}"


@dataclass(frozen=True, slots=True)
class Causality:
    """The transfers of a schedule and what is known when. Masks have one bit for each transfer's having arrived."""

    programs: tuple[Program, ...]
    transfers: tuple[Transfer, ...]
    #: One order in which the transfers may complete.
    order: tuple[int, ...]
    #: What has arrived, anywhere, before the source may read the first byte of transfer i.
    before_read: tuple[int, ...]
    #: What has arrived, anywhere, before the target may write the first byte of transfer i.
    before_write: tuple[int, ...]
    #: Mask of ranks that have entered the operation before transfer i is complete.
    entered: tuple[int, ...]
    #: The receives, as indices into the source's program, that transfer i's send waits for, directly or through others.
    waits_of_send: tuple[int, ...]
    #: The same of its receive, in the target's program. These, unlike all above, are masks of receives.
    waits_of_receive: tuple[int, ...]
    #: From (rank, index of a receive in its program) to the transfer.
    of_receive: Mapping[tuple[int, int], int]

    def send_of(self, index: int) -> Send:
        transfer = self.transfers[index]
        return self.programs[transfer.source].sends[transfer.send_index]

    def receive_of(self, index: int) -> Receive:
        transfer = self.transfers[index]
        return self.programs[transfer.target].receives[transfer.receive_index]


def establish(programs: Sequence[Program]) -> Causality:
    """Match sends with receives and derive what happens before what. Raises :class:`ScheduleError`."""
    _require_one_shape(programs)
    transfers = _match(programs)
    of_receive = {(t.target, t.receive_index): i for i, t in enumerate(transfers)}
    waits = tuple(
        (
            tuple(of_receive[t.source, r] for r in programs[t.source].sends[t.send_index].after),
            tuple(of_receive[t.target, r] for r in programs[t.target].receives[t.receive_index].after),
        )
        for t in transfers
    )
    order = _order(transfers, waits)
    waits_of_send, waits_of_receive = _own_waits(transfers, waits, order)
    before_read, before_write, entered = [0] * len(transfers), [0] * len(transfers), [0] * len(transfers)
    for i in order:
        transfer, (send_waits, receive_waits) = transfers[i], waits[i]
        entered[i] = 1 << transfer.source | 1 << transfer.target
        for j in send_waits:
            before_read[i] |= before_write[j] | 1 << j
            entered[i] |= entered[j]
        before_write[i] = before_read[i]
        for j in receive_waits:
            before_write[i] |= before_write[j] | 1 << j
            entered[i] |= entered[j]
    return Causality(
        tuple(programs),
        transfers,
        order,
        tuple(before_read),
        tuple(before_write),
        tuple(entered),
        waits_of_send,
        waits_of_receive,
        of_receive,
    )


def in_words(segments: Sequence[Segment]) -> str:
    """Such as ``[0:3)``, or ``[6:8)+[0:3)``."""
    return "+".join(f"[{start}:{stop})" for start, stop in segments)


def _require_one_shape(programs: Sequence[Program]) -> None:
    for rank, program in enumerate(programs):
        if program.rank != rank:
            raise ScheduleError(f"has the program of rank {program.rank}", rank)
        if program.count != programs[0].count:
            raise ScheduleError(f"has {program.count} elements, rank 0 has {programs[0].count}", rank)
        for send in program.sends:
            _require_sound(program, send, send.target, len(programs))
        for receive in program.receives:
            _require_sound(program, receive, receive.source, len(programs))
            if receive.received_first and not receive.reduce:
                raise ScheduleError("received_first means nothing without reduce", rank, receive.step)
            if receive.also and receive.reduce:
                raise ScheduleError("a message of several segments is never reduced", rank, receive.step)


def _require_sound(program: Program, part: Send | Receive, peer: int, ranks: int) -> None:
    def wrong(message: str) -> ScheduleError:
        return ScheduleError(message, program.rank, part.step, (part.start, part.stop))

    if not 0 <= peer < ranks or peer == program.rank:
        raise wrong(f"has rank {peer} as its peer, of {ranks} ranks")
    if part.step < 0:
        raise wrong("a step is negative")
    if any(not 0 <= start <= stop <= program.count for start, stop in part.segments):
        raise wrong(f"lies outside the buffer of {program.count} elements")
    if part.also:
        _require_sound_segments(program, part.segments, wrong)
    elif part.start == part.stop != 0:
        raise wrong("a message without elements has start and stop 0")
    for index in part.after:
        if not 0 <= index < len(program.receives):
            raise wrong(f"waits for receive {index} of {len(program.receives)}")
    if len(set(part.after)) != len(part.after):
        raise wrong("waits for the same receive twice")


def _require_sound_segments(
    program: Program, segments: tuple[Segment, ...], wrong: Callable[[str], ScheduleError]
) -> None:
    if not program.sends_from_copies:
        raise wrong("has several segments in a program that does not send from copies")
    if any(start == stop for start, stop in segments):
        raise wrong("one of several segments is empty")
    if any(stop > following for (_, stop), (following, _) in pairwise(sorted(segments))):
        raise wrong("has the same element in two segments")


def _match(programs: Sequence[Program]) -> tuple[Transfer, ...]:
    sends: dict[tuple[int, int, int], int] = {}
    receives: dict[tuple[int, int, int], int] = {}
    for program in programs:
        for index, send in enumerate(program.sends):
            if sends.setdefault((send.step, program.rank, send.target), index) != index:
                raise ScheduleError(
                    f"sends twice to rank {send.target}", program.rank, send.step, (send.start, send.stop)
                )
        for index, receive in enumerate(program.receives):
            if receives.setdefault((receive.step, receive.source, program.rank), index) != index:
                raise ScheduleError(
                    f"receives twice from rank {receive.source}",
                    program.rank,
                    receive.step,
                    (receive.start, receive.stop),
                )
    for name in sorted(sends.keys() ^ receives.keys()):
        step, source, target = name
        if name in sends:
            send = programs[source].sends[sends[name]]
            raise ScheduleError(f"rank {target} does not receive this", source, step, (send.start, send.stop))
        receive = programs[target].receives[receives[name]]
        raise ScheduleError(f"rank {source} does not send this", target, step, (receive.start, receive.stop))
    return tuple(_pair(programs, name, sends[name], receives[name]) for name in sorted(sends))


def _pair(programs: Sequence[Program], name: tuple[int, int, int], send_index: int, receive_index: int) -> Transfer:
    step, source, target = name
    send, receive = programs[source].sends[send_index], programs[target].receives[receive_index]
    if send.segments != receive.segments:
        into = f"rank {target} receives it into {in_words(receive.segments)}"
        if send.also:
            into = f"{into}, not {in_words(send.segments)}"
        raise ScheduleError(into, source, step, (send.start, send.stop))
    return Transfer(step, source, target, send.start, send.stop, send_index, receive_index, send.also)


_Waits = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


def _order(transfers: Sequence[Transfer], waits: _Waits) -> tuple[int, ...]:
    """A topological order. What remains when nothing can go on is, or waits for, a cycle: a deadlock."""
    awaited_by: list[list[int]] = [[] for _ in transfers]
    missing = [0] * len(transfers)
    for i, both in enumerate(waits):
        for j in {j for some in both for j in some}:
            awaited_by[j].append(i)
            missing[i] += 1
    ready = [i for i, number in enumerate(missing) if number == 0]
    for i in ready:  # grows while we walk
        for k in awaited_by[i]:
            missing[k] -= 1
            if missing[k] == 0:
                ready.append(k)
    if len(ready) < len(transfers):
        cycle = list(_cycle(waits, missing))
        first = transfers[cycle[0]]
        raise ScheduleError(
            "deadlock: " + ", which waits for ".join(str(transfers[i]) for i in [*cycle, cycle[0]]),
            first.target,
            first.step,
            first.segment,
        )
    return tuple(ready)


def _own_waits(
    transfers: Sequence[Transfer], waits: _Waits, order: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What each send and receive waits for by its own rank's waits alone. Who waits for a receive is of its rank."""
    of_send, of_receive = [0] * len(transfers), [0] * len(transfers)
    for i in order:
        for mask, awaited in zip((of_send, of_receive), waits[i], strict=True):
            for j in awaited:
                mask[i] |= of_receive[j] | 1 << transfers[j].receive_index
    return tuple(of_send), tuple(of_receive)


def _cycle(waits: _Waits, missing: Sequence[int]) -> Iterator[int]:
    """One cycle among the transfers that never became ready: follow what each waits for until one comes again."""
    here = next(i for i, number in enumerate(missing) if number)
    walked: dict[int, int] = {}
    while here not in walked:
        walked[here] = len(walked)
        here = next(j for some in waits[here] for j in some if missing[j])
    yield from list(walked)[walked[here] :]
