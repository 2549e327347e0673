"""What both sides of a rendezvous know before they speak: who, where, with what secret, for how long."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass, field

from r2ccl.protocol.handshake import Identity
from r2ccl.rendezvous.launch import is_loopback_host

#: MASTER_PORT and the ones behind it: torchrun's own store sits on the first, and jobs may share a machine.
PORTS_TRIED = 16
_PORT_MAX = 65535
#: From a connection's beginning to its announcement; an honest peer needs a few round trips.
HANDSHAKE_TIMEOUT_S = 5.0
#: How often ranks that wait are told for whom, so that their time-outs can name them too.
SAY_WHO_IS_MISSING_S = 1.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """One rank's invitation. ``host`` and ``port`` are where rank 0 is reached, the same for all ranks."""

    rank: int
    size: int
    host: str
    port: int
    secret: bytes = field(repr=False)
    job: str
    incarnation: int
    package_version: str
    timeout_s: float
    #: Admit peers on other hosts without a secret.
    insecure: bool = False

    @property
    def identity(self) -> Identity:
        """Who this rank is, in all handshakes of the job."""
        return Identity(self.job, self.secret, self.rank, self.incarnation, self.package_version)

    @property
    def ports(self) -> range:
        """The ports at which the store may be, in the order in which they are tried."""
        return range(self.port, min(self.port + PORTS_TRIED, _PORT_MAX + 1))

    @property
    def listening_host(self) -> str:
        """Where rank 0 listens: on loopback if all are told to come there, else on every NIC."""
        six = ":" in self.host
        if is_loopback_host(self.host):
            return self.host if six or self.host.startswith("127.") else "127.0.0.1"
        return "::" if six else "0.0.0.0"


def is_same_host(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer is on this machine: it came over loopback, or from the very address that it came to."""
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if not here or not there:
        return False
    return bool(here[0] == there[0]) or ipaddress.ip_address(there[0].partition("%")[0]).is_loopback


def no_secret(meeting: Meeting, place: str) -> str | None:
    """Why a peer on another host must be refused, or None."""
    if meeting.secret or meeting.insecure:
        return None
    return (
        f"{place} is another host, and the job has no secret: anybody who reaches the port could join. Give all ranks "
        "the same R2CCL_SECRET or R2CCL_SECRET_FILE, or set R2CCL_INSECURE=1 on all of them if the network is trusted"
    )
