"""torch 2.14's reconfigure calls, which are experimental there, and what they leave to the program: who is left.

A program gathers a handle of each process that is to go on, and gives all of them to ``_reconfigure`` everywhere. Ours
says which rank of the job a process is, and which incarnation of it. So a group can be made of processes that met once,
in any order, and goes on with their connections; a process that is new to them is refused, for it has to meet them
first, by ``init_process_group``.

After a loss the members agree (``shrinking``), and the handles must be of those they agreed on: :func:`survivors` has
just these.

torch keeps rank and size in an object that Python cannot change. Where they change, the default group becomes another
object, as after ``shrink_group``. Calls on the old one, and on any other group, reach the new group, but the rank and
the size that torch shows of them stay what they were.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from r2ccl.communicator import Communicator
from r2ccl.errors import PeerLost, UsageError
from r2ccl.torch_backend import shrinking
from r2ccl.torch_backend.group import Group
from r2ccl.torch_backend.job import Job

HANDLE: Final = re.compile(r"r2ccl:(\d{1,9}):([0-9a-f]{16})")


def handle_of(communicator: Communicator, member: int) -> str:
    """What stands for a rank of the job."""
    return f"r2ccl:{member}:{communicator._runtime.shared.members[member].incarnation:016x}"


def survivors(communicator: Communicator, timeout_s: float | None) -> tuple[int, list[str]]:
    """Who goes on after a loss, as the members agree: a number that is theirs, and their handles."""
    left: Communicator = communicator.shrink(timeout=timeout_s).wait()
    return zlib.crc32(repr(left.members).encode()), [handle_of(communicator, member) for member in left.members]


def reconfigured(
    old: shrinking.Half, is_default: bool, handles: Collection[str], timeout: timedelta | None
) -> tuple[Job, Group]:
    """The group of these, in their order; in that of their ranks, if they come in none."""
    communicator = old._group.communicator
    members = [_member(communicator, handle) for handle in handles]
    if not isinstance(handles, list):
        members.sort()
    if communicator.members[communicator.rank] not in members:
        raise UsageError("reconfigure: the handle of this rank is not among those of the group")
    if len(set(members)) < len(members):
        raise UsageError("reconfigure: a handle is there twice")
    limit_s = old._group.limit_s(timeout)
    if isinstance(communicator.failure, PeerLost):
        left: Communicator = communicator.shrink(timeout=limit_s).wait()
        if set(left.members) != set(members):
            raise UsageError(
                f"reconfigure: the handles are of ranks {sorted(members)} of the job, and its members agreed to go on "
                f"with {list(left.members)}: r2ccl.torch_backend.survivors() has their handles"
            )
        communicator = left
    made: Communicator = communicator.new_group([communicator.members.index(member) for member in members]).wait()
    made.barrier(timeout=limit_s).wait()
    return shrinking.parts(old, is_default, made)


def _member(communicator: Communicator, handle: Any) -> int:
    found = HANDLE.fullmatch(str(handle))
    member = int(found[1]) if found else -1
    if member not in communicator.members or handle != handle_of(communicator, member):
        raise UsageError(
            f"reconfigure: {str(handle)!r:.60} is of no process that this group has met: a new one has to meet all "
            "others first, by init_process_group"
        )
    return member
