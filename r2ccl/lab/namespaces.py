"""A network namespace held by a thread.

Namespaces under /run/netns have names, so they outlive whoever made them and somebody must clear them away. These have
none: the kernel ends one, and every interface in it, with its last process, thread and descriptor. So a lab that is
killed leaves nothing, by construction.

``unshare`` moves the calling thread only. Each namespace therefore has one thread that lives in it, and whatever has
to happen inside (netlink, opening a socket, starting a program) is called on that thread; the rest of the process
never leaves its own namespace. Children started there also die with that thread (see enter.py), that is, with the lab.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

from pyroute2 import IPRoute

P = ParamSpec("P")
T = TypeVar("T")

CLONE_NEWNET = 0x40000000


class Namespace:
    """One network namespace. Raises ``OSError`` when the system refuses to make it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lab-{label}")
        with ExitStack() as undo:
            undo.callback(self._thread.shutdown)
            #: Keeps the namespace, and names it to netlink.
            self.descriptor = self.call(_leave_the_network)
            undo.callback(os.close, self.descriptor)
            #: Netlink inside; to be used through :meth:`call` only.
            self.netlink: IPRoute = self.call(IPRoute)
            undo.pop_all()

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, from inside. A socket made there stays there, whoever uses it later."""
        return self._thread.submit(function, *args, **kwargs).result()

    def index_of(self, interface: str) -> int:
        """The interface's number. Raises ``LookupError`` if there is none of that name."""
        found = self.call(self.netlink.link_lookup, ifname=interface)
        if not found:
            raise LookupError(f"{self.label} has no interface {interface!r}")
        return int(found[0])

    def close(self) -> None:
        """Let go. The namespace ends with the last process in it."""
        self.call(self.netlink.close)
        os.close(self.descriptor)
        self._thread.shutdown()

    def __repr__(self) -> str:
        return f"Namespace({self.label!r})"


def _leave_the_network() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot make a network namespace: {os.strerror(code)}")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
