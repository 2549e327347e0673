"""What the process groups of a process have in common: one job, with its NICs, sockets, links and thread.

The default group connects. Every other group of r2ccl whose members belong to it is a group of the same job, made
without a message. Where the default group is another backend's, a group connects by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from r2ccl.bootstrap import connect_at
from r2ccl.communicator import Communicator
from r2ccl.config import environment, job_secret, read_settings
from r2ccl.errors import ConfigurationError, UsageError
from r2ccl.rendezvous.launch import Placement
from r2ccl.torch_backend.flight_recorder import KEPT, FlightRecorder, Line, write
from r2ccl.torch_backend.group import Group
from r2ccl.torch_backend.rendezvous import Place, StoreMeeting, find_company
from r2ccl.torch_backend.works import Callbacks
from r2ccl.transport.node_identity import node_id

logger = logging.getLogger("r2ccl")


class Job:
    """A connected job, or what is left of it."""

    def __init__(self, communicator: Communicator, ranks: Sequence[int], connected: Communicator | None = None) -> None:
        self.communicator = communicator
        #: Of each member, its rank in the default group.
        self.ranks = tuple(ranks)
        #: That which all ranks connected to at first. Its end is that of the process's part in the job, and forks look
        #: for it, however often the job was shrunk since.
        self.connected = communicator if connected is None else connected
        self.callbacks = Callbacks()
        #: A new one for a job that was shrunk: its ranks are others.
        self.recorder = FlightRecorder(_calls_kept(environment()))
        self._dump_prefix = environment().get("TORCH_FR_DUMP_TEMP_FILE", "")
        self.connected.when_closed(self.callbacks.stop)

    def covers(self, ranks: Sequence[int]) -> bool:
        """Are all of these its members?"""
        return set(ranks) <= set(self.ranks)

    def whole(self, name: str, timeout: timedelta) -> Group:
        """The group of all its members."""
        line = Line(name, "default_pg", self.ranks)
        return Group(self.communicator, line, timeout, self.callbacks, self.recorder, self.dump_if_asked)

    def part(self, name: str, ranks: Sequence[int], timeout: timedelta) -> Group:
        """A group of some of its members, this rank one of them."""
        made: Communicator = self.communicator.new_group([self.ranks.index(rank) for rank in ranks]).wait()
        return self.around(made, name, ranks, timeout)

    def around(self, communicator: Communicator, name: str, ranks: Sequence[int], timeout: timedelta) -> Group:
        """The group of a communicator that was made."""
        line = Line(name, "undefined", ranks)
        return Group(communicator, line, timeout, self.callbacks, self.recorder, self.dump_if_asked)

    def shrunk(self, communicator: Communicator, ranks: Sequence[int]) -> Job:
        """The same job, of fewer ranks."""
        return Job(communicator, ranks, self.connected)

    def dump(self, path: str | Path | None = None) -> Path:
        """Write the latest calls to the file that torch's analyser reads."""
        prefix = self._dump_prefix if path is None else str(path)
        if not prefix:
            raise UsageError("dump_flight_recorder: pass a path, or set TORCH_FR_DUMP_TEMP_FILE")
        file = Path(f"{prefix}{self.ranks[self.communicator.rank]}")
        write(self.recorder.contents(), file)
        return file

    def dump_if_asked(self) -> None:
        """The same when a group fails, where TORCH_FR_DUMP_TEMP_FILE says so."""
        if self._dump_prefix:
            try:
                logger.warning("flight recorder: %s", self.dump())
            except OSError as error:
                logger.warning("flight recorder: cannot be written: %s", error)

    def close(self) -> None:
        """Say goodbye and end; bounded by R2CCL_CLOSE_TIMEOUT."""
        self.connected.close_and_wait()

    def abort(self) -> None:
        """End at once: the others see this rank die."""
        self.connected.abort()


def connect(store: Any, rank: int, size: int, name: str, ranks: Sequence[int], timeout: timedelta) -> Job:
    """Find the other ranks through torch's store, and connect to them."""
    reading = read_settings()
    settings = reading.settings
    place = Place.of(store, rank, size)
    company = find_company(place, node_id(settings.node_id), bool(job_secret(settings)), timeout.total_seconds())
    if company.secret:
        reading = reading._replace(settings=settings.replace(secret=company.secret))
    # Ranks of one node need no NIC to reach one another.
    host = "127.0.0.1" if len(set(company.nodes)) == 1 else ""
    placement = Placement(rank, size, None, host, 0, "torch.distributed", "torch's store", f"torch-{name}")
    return Job(connect_at(placement, StoreMeeting(place), reading).wait(), ranks)


def _calls_kept(variables: Mapping[str, str]) -> int:
    """torch's own variable for it."""
    word = variables.get("TORCH_FR_BUFFER_SIZE", "")
    if word and not word.isdecimal():
        raise ConfigurationError(f"TORCH_FR_BUFFER_SIZE={word!r} must be a number of calls, 0 for none")
    return int(word) if word else KEPT
