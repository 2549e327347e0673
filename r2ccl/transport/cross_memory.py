"""Copies from the memory of another process of this machine by one system call: Linux's ``process_vm_readv``.

Where the kernel forbids it (Yama's ``ptrace_scope`` of 1 and more without CAP_SYS_PTRACE, some containers), or has no
such call, nothing can be read, and that is all.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from typing import Any

import numpy as np


class _Span(ctypes.Structure):
    """The kernel's ``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def _system_call() -> Any:
    call = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if call is not None:
        span, count = ctypes.POINTER(_Span), ctypes.c_ulong
        call.argtypes, call.restype = (ctypes.c_int, span, count, span, count, count), ctypes.c_ssize_t
    return call


_READ = _system_call()
_Byte = ctypes.c_char


def address_of(memory: bytes | memoryview) -> int:
    """Where it begins. Not for what is empty."""
    try:
        return ctypes.addressof(_Byte.from_buffer(memory))
    except TypeError:  # it is read-only
        return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def read_from(pid: int, address: int, target: memoryview) -> bool:
    """Copy what lies there in a process into ``target``, all of it. False: that was not possible, and ``target`` may
    have some of it. Other threads run meanwhile."""
    if _READ is None:
        return False
    size = len(target)
    here, there = _Span(address_of(target), size), _Span(address, size)
    return bool(_READ(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == size)


def others_may_read() -> bool:
    """Does the kernel let a process read one that is no descendant of it, as ranks of a machine are? A child of ours
    tries."""
    word = os.urandom(16)
    address, found = address_of(word), bytearray(len(word))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which the child does without
        child = os.fork()
    if child == 0:
        os._exit(0 if read_from(os.getppid(), address, memoryview(found)) and found == word else 1)
    return os.waitpid(child, 0)[1] == 0
