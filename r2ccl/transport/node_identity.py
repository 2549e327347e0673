"""Which ranks are on one node: those that share a network namespace and a /dev/shm.

The id is a hash of this boot, the network namespace and the file system behind /dev/shm. Two containers on one machine
with networks of their own are two nodes, two processes in one container are one, and an emulated host is a node of its
own.

Equal ids say "probably". That suffices for whether chunks carry checksums, as a wrong guess leaves TCP's own. Who is to
share memory has to prove it: by being found there, and by a token that the other left in it (``shared_handshake``,
``shared_segment``).
"""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from pathlib import Path

#: In hexadecimal digits: enough that no two nodes of a job share one by chance.
NODE_ID_LENGTH = 16


def node_id(override: str = "", root: Path = Path("/")) -> str:
    """This process's node. ``override`` is the setting ``R2CCL_NODE_ID`` and taken as it is."""
    if override:
        return override
    what = "\0".join((_boot(root), _network_namespace(root), _shared_memory(root)))
    return hashlib.blake2b(what.encode(), digest_size=NODE_ID_LENGTH // 2).hexdigest()


def _boot(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Not Linux: the machine's name and hardware address tell machines apart, and a restart does not matter.
        return f"{platform.node()} {uuid.getnode()}"


def _network_namespace(root: Path) -> str:
    try:
        return str(os.stat(root / "proc/self/ns/net").st_ino)
    except OSError:
        return "no namespaces"


def _shared_memory(root: Path) -> str:
    try:
        return str(os.stat(root / "dev/shm").st_dev)
    except OSError:
        return "no shared memory"
