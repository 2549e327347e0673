"""Listens to a world's control connections, and to what becomes of chunks that come twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from r2ccl.actors.inbox import Inbox
from r2ccl.actors.links import Port
from r2ccl.ids import RELAY_NIC, nic_name
from r2ccl.protocol.agreement_messages import (
    Ballot,
    Commit,
    Inquire,
    Message,
    No,
    Propose,
    Report,
    State,
    read_message,
)
from r2ccl.protocol.steadiness import read_steps
from r2ccl.protocol.wire import Header, Kind, read_abort, read_entered, read_notice, read_shrunk, unpack_body
from r2ccl.sim.world import World
from r2ccl.transport.interface import Connection

#: (who, what)
Tell = Callable[[str, str], None]
#: Too many to read.
LEFT_OUT = (Kind.BEAT, Kind.ACK)


def listen(world: World, tell: Tell, letters: Mapping[int, str]) -> None:
    """Tell of every control message when it is heard, and of twins."""
    for rank, runtime in enumerate(world.runtimes):
        for port in runtime.all_ports:
            _tap_port(rank, port, tell, letters)
        for coordinator in runtime.coordinators.values():
            _tap_inbox(rank, coordinator.inbox, tell)


def _tap_port(rank: int, port: Port, tell: Tell, letters: Mapping[int, str]) -> None:
    control = port.control

    def tapped(connection: Connection, header: Header, body: memoryview) -> None:
        if header.kind not in LEFT_OUT:
            what = describe(Kind(header.kind), unpack_body(body), letters)
            way = f"nic{connection.remote_nic}->nic{connection.local_nic}"
            if connection.local_nic == RELAY_NIC:
                way = "a relay"
            tell(f"rank {header.source} -> {rank}", f"{what} on {way}")
        control(connection, header, body)

    port.control = tapped  # type: ignore[method-assign]


def _tap_inbox(rank: int, inbox: Inbox, tell: Tell) -> None:
    place, landed = inbox.place, inbox.landed
    twins: dict[Connection, Header] = {}

    def tapped_place(connection: Connection, header: Header) -> Any:
        owner = _owner(inbox, header)
        landing = place(connection, header)
        if landing.inbox is not None and owner is not None:
            twins[connection] = header
            tell(f"rank {rank}", f"{_name(header)}: its twin comes in on nic{connection.local_nic}, goes elsewhere")
        return landing

    def tapped_landed(connection: Connection, landing: Any, header: Header, displace: Any) -> None:
        def told_displace(loser: Connection) -> None:
            tell(
                f"rank {rank}",
                f"{_name(header)}: nic{connection.local_nic} is done first, nic{loser.local_nic} discards",
            )
            displace(loser)

        if twins.pop(connection, None) is None:
            told_displace = displace
        landed(connection, landing, header, told_displace)

    inbox.place = tapped_place  # type: ignore[method-assign]
    inbox.landed = tapped_landed  # type: ignore[method-assign]


def _owner(inbox: Inbox, header: Header) -> object | None:
    incoming = inbox.ledger._open.get((header.operation, header.step, header.source))
    return None if incoming is None else incoming.writers.get(header.chunk)


def _name(header: Header) -> str:
    return f"chunk {header.chunk} of step {header.step} from rank {header.source}"


def describe(kind: Kind, body: list[Any], letters: Mapping[int, str]) -> str:
    """A control message in words."""
    match kind:
        case Kind.ENTERED:
            entered = read_entered(body)
            state = "finished" if entered.finished else "entered"
            landings = f", {len(entered.landings)} landings" if entered.landings else ""
            of = f" of {letters[entered.communicator]}" if entered.communicator in letters else ""
            return f"ENTERED {entered.operation}{of} {entered.call} {state}{landings}"
        case Kind.ABORT:
            abort = read_abort(body)
            return f"ABORT {abort.operation} cause={abort.cause}"
        case Kind.NOTICE:
            notice = read_notice(body)
            links = ", ".join(
                f"{nic_name(ours)}->{nic_name(theirs)} (incident {n})" for ours, theirs, n in notice.links_down
            )
            nics = ", ".join(f"nic{nic}" for nic in notice.nics_down)
            return f"NOTICE NICs down: {nics or 'none'}; links down: {links or 'none'};"
        case Kind.BALLOT:
            said = read_shrunk(body)
            vote = f", votes for {list(said.vote)}" if said.vote else ""
            ends = "" if said.decided is None else f", decided: all ended {said.decided[0]}, any {said.decided[1]}"
            return f"BALLOT reaches {list(said.view)}, ended {said.completed}{vote}{ends}"
        case Kind.GOODBYE:
            return f"GOODBYE completed={body[1]}{' and heard yours' if body[2] else ''}"
        case Kind.REPEAT:
            return f"REPEAT operation {body[1]}, step {body[2]}, chunk {body[3]}"
        case Kind.FENCED:
            return f"FENCED {body}"
        case Kind.AGREEMENT:
            return f"AGREEMENT {describe_agreement(read_message(body[1:]))}"
        case _:
            return kind.name


def describe_agreement(message: Message) -> str:
    """What is said on the way to a new epoch, in words."""
    match message:
        case Report():
            return f"report {message.version}: NICs are at steps {_steps(message.report)}"
        case Inquire():
            return f"inquire {_ballot(message.ballot)}"
        case State():
            return f"state for {_ballot(message.ballot)}: epoch {message.epoch}, {message.admitted} admitted"
        case Propose():
            agreed = message.agreed
            return f"propose {_ballot(message.ballot)}: epoch {agreed.epoch} from operation {agreed.first_operation} on"
        case No():
            return f"no to {_ballot(message.ballot)}: {message.admitted} admitted"
        case Commit():
            return f"commit: epoch {message.agreed.epoch} from operation {message.agreed.first_operation} on"
        case _:
            return type(message).__name__.lower()


def _ballot(ballot: Ballot) -> str:
    return f"{ballot.number}.{ballot.rank}"


def _steps(report: bytes) -> str:
    return ", ".join("none" if step is None else str(step) for step in read_steps(report)) or "as announced"
