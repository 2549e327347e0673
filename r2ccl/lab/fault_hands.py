"""The hands of ``fault-inject``: who does the operations, who watches the command, who waits.

Three small interfaces, so that the order of things (fault_run.py) can be tried without a kernel: :class:`Hands`
performs operations in a network namespace, :class:`Watchdog` is the process that undoes for us if we die,
:class:`Patience` waits for time, for a signal, or for the watchdog's death.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from r2ccl.errors import UsageError
from r2ccl.lab import fault_undo
from r2ccl.lab.fault_undo import Operation, Record

T = TypeVar("T")

#: A Python that starts on a busy machine.
READY_S = 30.0
#: After "done" the watchdog has nothing left to do.
LEAVE_S = 10.0


class HasDescriptor(Protocol):
    """What can be waited for."""

    def fileno(self) -> int: ...


D = TypeVar("D", bound=HasDescriptor)


class Hands:
    """Performs operations in a network namespace, on a thread that lives there."""

    def __init__(self, namespace: str | None) -> None:
        self._thread: ThreadPoolExecutor | None = None
        if namespace is not None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fault")
            try:
                self.call(lambda: fault_undo.enter(namespace))
            except OSError as error:
                self.close()
                raise UsageError(f"the network namespace {namespace} cannot be entered: {error.strerror}") from error

    def call(self, function: Callable[[], T]) -> T:
        """The function's result, from inside."""
        return function() if self._thread is None else self._thread.submit(function).result()

    def perform(self, operation: Operation) -> None:
        """Raises ``OSError``."""
        self.call(lambda: fault_undo.perform(operation))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


class Watchdog:
    """The process that undoes if this one is gone. Its end shows as the end of a pipe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, record: Record) -> None:
        """Returns when it has heard everything and watches. Raises :class:`UsageError` if it does not."""
        command = [sys.executable, "-I", fault_undo.__file__]
        self._process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(record.dump().encode() + b"\n")
        readable, _, _ = select.select([process.stdout], [], [], READY_S)
        if not readable or process.stdout.readline() != b"ready\n":
            process.kill()
            self._forget()
            raise UsageError("the watchdog, which would undo the fault if this command died, did not start")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it has something to say: that it undid, or by its end that it is gone."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def done(self) -> None:
        """All is undone: it may go."""
        self._say(b"done\n")

    def stay(self) -> None:
        """The fault outlives us, until its deadline, if it has one."""
        self._say(b"stay\n", wait=False)

    def leave(self) -> None:
        """Something is not undone: close the pipe, so that it tries, and wait for it."""
        self._say(b"")

    def _say(self, word: bytes, wait: bool = True) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            if word:
                process.stdin.write(word)
        if wait:
            self._forget()

    def _forget(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Patience:
    """Waits, and can be woken by a signal that asks to end. Use as a context, on the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.ended_by: signal.Signals | None = None

    def wait(self, seconds: float | None, watchdog: Watchdog | None) -> str:
        """Returns ``over``, ``signal`` or ``watchdog``: what came first."""
        if self.ended_by is not None:
            return "signal"
        watched = [self._reader] if watchdog is None else [self._reader, watchdog.fileno()]
        readable, _, _ = select.select(watched, [], [], seconds)
        if self._reader in readable:
            return "signal"
        return "watchdog" if readable else "over"

    def wait_for(self, seconds: float | None, others: Sequence[D]) -> list[D]:
        """Wait for time, for a signal, or until none of the others is there any more; returns those that are gone.

        Whoever has a descriptor that can be read is gone: nothing but an end is expected from them."""
        gone: list[D] = []
        deadline = None if seconds is None else fault_undo.now() + seconds
        while self.ended_by is None and len(gone) < len(others):
            left = None if deadline is None else max(0.0, deadline - fault_undo.now())
            there = [other for other in others if other not in gone]
            readable, _, _ = select.select([self._reader, *(other.fileno() for other in there)], [], [], left)
            if not readable or self._reader in readable:
                break
            gone += [other for other in there if other.fileno() in readable]
        return gone

    def _hear(self, number: int, _: object) -> None:
        self.ended_by = signal.Signals(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    @contextlib.contextmanager
    def listening(self) -> Iterator[Patience]:
        """Ctrl-C and the like end the waiting, not the process."""
        before = {
            number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._reader)
            os.close(self._writer)


def undo_record(record: Record) -> list[str]:
    """Undo a fault that stays or was left behind; returns what went wrong. One whose network is gone is gone."""
    if fault_undo.is_gone(record):
        Path(record.file).unlink(missing_ok=True)
        return []
    hands = Hands(record.namespace)
    try:
        if hands.call(fault_undo.this_network) == record.network:
            return hands.call(lambda: fault_undo.carry_out(record))
    finally:
        hands.close()
    if record.namespace is None:
        there = record.network.split()[1]
        return [
            f"{record.title} is in another network namespace ({there}): run this there; or, if there is none any more: "
            f"rm {record.file}"
        ]
    Path(record.file).unlink(missing_ok=True)
    return []
