"""Names of things, as small as they can be.

A transfer is named by (communicator, operation, step, source, target) and a chunk by its index in the transfer.
Both ends derive the same names from the same schedule, so nothing is negotiated and a chunk that arrives twice, on
any path, is recognised (ARCHITECTURE.md, decision 1).
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import NamedTuple

#: The parent of the first communicator of a job.
WORLD_PARENT = 0
#: The index, on every rank, of the NIC that is none: what goes by it is carried by other ranks. No host has so many.
RELAY_NIC = 0xFFFF
#: Another that is none: the memory that ranks of one node share.
SHARED_NIC = 0xFFFE


class TransferName(NamedTuple):
    """One segment's journey between two ranks. A tuple, because one is made for every chunk."""

    communicator: int
    operation: int
    step: int
    source: int
    target: int


class ChunkName(NamedTuple):
    """A transfer's name and the chunk's index in it, flattened: the key of every chunk table."""

    communicator: int
    operation: int
    step: int
    source: int
    target: int
    chunk: int


@dataclass(frozen=True, slots=True, order=True)
class LinkId:
    """A (local NIC, remote NIC) pair towards one peer, seen from here."""

    peer: int
    local_nic: int
    remote_nic: int

    @property
    def is_relayed(self) -> bool:
        """Do other ranks carry what goes by it?"""
        return self.local_nic == RELAY_NIC

    @property
    def is_shared(self) -> bool:
        """Is it memory that both share?"""
        return self.local_nic == SHARED_NIC

    @property
    def joins_nics(self) -> bool:
        """Are there NICs at its ends that could be at fault?"""
        return self.local_nic < SHARED_NIC

    def __str__(self) -> str:
        if self.is_relayed:
            return f"relay->rank{self.peer}"
        if self.is_shared:
            return f"memory->rank{self.peer}"
        return f"nic{self.local_nic}->rank{self.peer}.nic{self.remote_nic}"


def nic_name(index: int) -> str:
    """A NIC as logs and counters call it."""
    return {RELAY_NIC: "relay", SHARED_NIC: "memory"}.get(index) or f"nic{index}"


def communicator_id(parent: int, operation: int, colour: int) -> int:
    """A communicator's 64-bit id: a hash of what created it, so that all members agree without a message.

    A local counter would not do: two ranks that split in different orders would count differently.
    """
    text = f"{parent}:{operation}:{colour}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def objects_id(communicator: int) -> int:
    """The communicator in which a communicator's objects travel."""
    return communicator_id(communicator, -1, -1)


def channel_id(communicator: int, source: int, target: int, tag: int) -> int:
    """The id of what messages from one rank to another with one tag travel in, in order."""
    text = f"{communicator}:{source}>{target}:{tag}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def successor_id(communicator: int, members: tuple[int, ...]) -> int:
    """What a communicator is shrunk to, if these members go on."""
    # No operation has such a number.
    return communicator_id(communicator, -(1 << 62), zlib.crc32(str(members).encode()))


#: The communicator of all ranks of a job.
WORLD = communicator_id(WORLD_PARENT, 0, 0)
