"""Who takes part: torch's default process group, made by us or by the program before, is all the state there is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from r2ccl.config import environment
from r2ccl.errors import UsageError
from r2ccl.planner.node_places import NodePlace, place_of
from r2ccl.rendezvous.launch import Placement, place
from r2ccl.torch_backend.inside import communicator

NAME = "r2ccl"
#: As long as torch gives a process group of gloo.
TIMEOUT = timedelta(minutes=30)


def init(timeout: timedelta = TIMEOUT) -> None:
    """Connect to the other ranks, or use torch's default process group if the program has made one with r2ccl.

    Ranks are started by torchrun, ``r2ccl run``, mpirun, srun or whatever else r2ccl finds its ranks by; a process that
    nobody placed is refused, and does not train alone. ``timeout`` limits how long ranks may take to come, and each
    operation. May be called twice.
    """
    if dist.is_initialized():
        communicator()  # says which backend the group has, if another
        return
    if "TORCHELASTIC_RUN_ID" in environment():
        dist.init_process_group(NAME, timeout=timeout)  # torchrun has a store of its own
        return
    placement = place(environment())
    store = _store(placement, timeout)
    dist.init_process_group(NAME, store=store, rank=placement.rank, world_size=placement.size, timeout=timeout)


def _store(placement: Placement, timeout: timedelta) -> Any:
    """Where the ranks meet; rank 0 holds it."""
    if not placement.port:
        return dist.HashStore()  # a job of one
    is_host = placement.rank == 0
    return dist.TCPStore(placement.host, placement.port, placement.size, is_host, timeout, wait_for_workers=False)


def shutdown() -> None:
    """Leave the job: torch's default process group is destroyed, whoever made it. May be called twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Is there a process group?"""
    return bool(dist.is_initialized())


def rank() -> int:
    """This rank, from 0."""
    _require()
    return int(dist.get_rank())


def size() -> int:
    """How many ranks there are."""
    _require()
    return int(dist.get_world_size())


def local_rank() -> int:
    """Index among the ranks on this node; what the launcher says, if it does."""
    _require()
    return communicator().local_rank


def local_size() -> int:
    """How many ranks there are on this node."""
    return _place().local_size


def cross_rank() -> int:
    """Index of this node among those that have a rank of this local index."""
    return _place().cross_rank


def cross_size() -> int:
    """How many nodes have a rank of this local index."""
    return _place().cross_size


def is_homogeneous() -> bool:
    """Have all nodes as many ranks?"""
    return _place().is_homogeneous


def _place() -> NodePlace:
    _require()
    job = communicator()
    return place_of(job.rank, job.nodes)


def _require() -> None:
    if not dist.is_initialized():
        raise UsageError("there is no job yet: call init() first")
