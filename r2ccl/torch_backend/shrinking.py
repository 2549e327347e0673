"""Going on with fewer ranks: which, and how torch is told.

After a loss the survivors agree on who goes on (``protocol/membership.py``); torch's own ``shrink_group`` leaves that
to the program, which has to name the same ranks everywhere. Both are here:

    nobody named     what is left of the group goes on, as its members agree
    ranks named      after a loss the members agree all the same, and the call is refused where they agree on others
                     than it leaves. Without a loss the group of the others is made, which costs no message, and a
                     barrier in it proves that they named the same ranks

The old communicator stays where it is: of all ranks that connected, its end is the end of this process's part in the
job (``Job.connected``). The old process group ends for torch, and with the default group all others, because ranks are
numbered anew in the new one: from 0 on, in the old order.

torch 2.14 asks the backend, and makes the new process group itself. Before, it cannot: it would make one in C++ and put
a backend of C++ into it. So :func:`shrink` does what torch does, with the functions of torch that both have.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
import torch.distributed.distributed_c10d as c10d

from r2ccl.communicator import Communicator
from r2ccl.errors import PeerLost, UsageError
from r2ccl.torch_backend.group import Group
from r2ccl.torch_backend.job import Job

#: torch's flag: end what is under way first.
SHRINK_ABORT = 1


class Half(Protocol):
    """A process group or backend of ours."""

    job: Job
    _group: Group

    def give_way(self) -> None: ...


def without(
    old: Half, is_default: bool, excluded: Sequence[int], flags: int, timeout: timedelta | None
) -> tuple[Job, Group]:
    """A group without some ranks of another, by their ranks in it."""
    communicator = old._group.communicator
    wanted = tuple(member for rank, member in enumerate(communicator.members) if rank not in set(excluded))
    if isinstance(communicator.failure, PeerLost):
        made = _agreed(old, timeout)
        if made.members != wanted:
            left = [communicator.members.index(member) for member in made.members]
            raise UsageError(
                f"shrink: to go on without rank(s) {', '.join(map(str, sorted(excluded)))} of the group is not what "
                f"its members agreed on, which is to go on with {left}: exclude all others, and only these"
            )
    else:
        if flags & SHRINK_ABORT:
            communicator.abort_alone("shrink_group(shrink_flags=SHRINK_ABORT)")
        made = communicator.new_group([communicator.members.index(member) for member in wanted]).wait()
        # Who named other ranks makes another group, and does not come.
        made.barrier(timeout=old._group.limit_s(timeout)).wait()
    return parts(old, is_default, made)


def agreed(old: Half, is_default: bool, timeout: timedelta | None) -> tuple[Job, Group]:
    """A group of those that are left of another, as they agree."""
    return parts(old, is_default, _agreed(old, timeout))


def _agreed(old: Half, timeout: timedelta | None) -> Communicator:
    made: Communicator = old._group.communicator.shrink(timeout=old._group.limit_s(timeout)).wait()
    return made


def parts(old: Half, is_default: bool, made: Communicator) -> tuple[Job, Group]:
    """The group of a communicator that was made of a part of another's."""
    group = old._group
    left = [group.ranks[group.communicator.members.index(member)] for member in made.members]
    if group.communicator is old.job.communicator:
        # In the default group ranks are numbered anew.
        job = old.job.shrunk(made, range(made.size) if is_default else left)
        return job, job.whole(group.name, group.timeout)
    return old.job, old.job.around(made, group.name, left, group.timeout)


def replaced(old_group: Any, old: Half, new: Any) -> Any:
    """Tell torch: ``new`` in the place of a process group of ours. Returns the process group that is there now."""
    is_default = old_group is torch.distributed.group.WORLD
    if is_default:
        c10d._destroy_all_other_groups(exclude_group=old_group)
    about = c10d._extract_group_metadata(old_group)
    old.give_way()
    c10d._cleanup_original_group(old_group, is_default)
    new._group.line.name = about["new_group_name"]
    description = "default:shrunken" if is_default else f"{about['original_group_name']}:shrunk"
    made = new if isinstance(new, torch.distributed.ProcessGroup) else _holder(new, about["store"])
    made._set_group_name(about["new_group_name"])
    made._set_group_desc(description)
    if is_default:
        c10d._update_default_pg(made)
    c10d._register_pg_in_world(
        pg=made,
        backend_name=about["backend_name"],
        store=about["store"],
        group_name=about["new_group_name"],
        backend_config=about["backend_config"],
        rank_mapping={rank: number for number, rank in enumerate(new._group.ranks)},
    )
    return made


def _holder(backend: Any, store: Any) -> Any:
    """torch's process group around a backend."""
    held = torch.distributed.ProcessGroup(store, backend.rank(), backend.size())
    kind = torch.distributed.ProcessGroup.BackendType.CUSTOM
    held._register_backend(torch.device("cpu"), kind, backend)
    held._set_default_backend(kind)
    return held
