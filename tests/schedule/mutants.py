"""Schedules changed in one place, and the demand that the check refuses them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from r2ccl.schedule import semantics
from r2ccl.schedule.causality import ScheduleError
from r2ccl.schedule.check import check
from r2ccl.schedule.ir import Program

Programs = list[Program]


def changed_send(programs: Programs, rank: int, at: int, **changes: Any) -> Programs:
    """The schedule with one send of one rank changed."""
    program = programs[rank]
    sends = (*program.sends[:at], dataclasses.replace(program.sends[at], **changes), *program.sends[at + 1 :])
    return with_(programs, dataclasses.replace(program, sends=sends))


def changed_receive(programs: Programs, rank: int, at: int, **changes: Any) -> Programs:
    """The schedule with one receive of one rank changed."""
    program = programs[rank]
    changed = dataclasses.replace(program.receives[at], **changes)
    receives = (*program.receives[:at], changed, *program.receives[at + 1 :])
    return with_(programs, dataclasses.replace(program, receives=receives))


def with_(programs: Programs, changed: Program) -> Programs:
    return [changed if program.rank == changed.rank else program for program in programs]


def refused(programs: Sequence[Program], collective: semantics.Collective, message: str) -> ScheduleError:
    """The error, whose message must contain ``message``."""
    with pytest.raises(ScheduleError, match=re.escape(message)) as raised:
        check(programs, collective)
    return raised.value
