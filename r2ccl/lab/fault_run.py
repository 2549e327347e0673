"""The life of a fault: written down, watched over, done, waited for, undone. In this order, whatever happens.

    record on disk -> watchdog ready -> steps, in order -> wait -> their undoing, in reverse -> record gone, "done"

Whatever ends the waiting (time, a signal, the watchdog's death, an exception) leads to the undoing. A step that fails
is undone like those before it, for it may have happened in part. What cannot be undone now is left to the watchdog,
and the record stays on disk for ``fault-inject undo``. A flap does and undoes the steps by turns, within this frame.
"""

from __future__ import annotations

import enum
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from r2ccl.errors import R2cclError, UsageError
from r2ccl.lab import fault_undo
from r2ccl.lab.fault_undo import Operation, Record
from r2ccl.lab.kernel_faults import Fault, Step

#: Directory of records, within the user's private one.
RECORDS = "faults"


class FaultNotDone(R2cclError):
    """A step of a fault was refused by the machine. What had been done before it is undone."""

    definite = True


class FaultNotUndone(R2cclError):
    """Something of a fault is still in force: the message says what, and what to try."""


class Performs(Protocol):
    """Who does operations; see fault_hands."""

    def perform(self, operation: Operation) -> None: ...


class Watches(Protocol):
    """Who undoes for the dead; see fault_hands."""

    def start(self, record: Record) -> None: ...
    def done(self) -> None: ...
    def stay(self) -> None: ...
    def leave(self) -> None: ...


#: Wait so many seconds, or for ever; returns ``over``, ``signal`` or ``watchdog``.
Wait = Callable[[float | None], str]
#: Told what happened, for the screen: ``done``, ``undone``, ``down``, ``up``.
Tell = Callable[[str], None]


class Ending(enum.StrEnum):
    """Why a fault is over."""

    OVER = "its time is over"
    SIGNAL = "interrupted"
    WATCHDOG = "the watchdog is gone, and without it no fault goes on"
    STAYS = "it stays"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long, and whether the end of the command is its end."""

    for_s: float | None = None
    stay: bool = False


def new_identity() -> str:
    """A name for a fault, for its table and its record."""
    return secrets.token_hex(4)


def record_of(fault: Fault, limits: Limits, network: str, directory: Path) -> Record:
    """All that is needed to undo it."""
    deadline = None if limits.for_s is None else fault_undo.now() + limits.for_s
    file = directory / RECORDS / f"{fault.identity}.json"
    return Record(fault.identity, fault.title, fault.namespace, network, fault.undo, deadline, str(file))


def write(record: Record) -> None:
    """Put it on disk, before anything is done; whole, so that nobody ever reads half of it."""
    path = Path(record.file)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(record.dump())
    draft.rename(path)


def records(directory: Path) -> Iterator[Record]:
    """All faults that are in force, or were left behind. Those that went with their network are forgotten."""
    for path in sorted((directory / RECORDS).glob("*.json")):
        try:
            record = Record.load(path.read_text())
        except FileNotFoundError:
            continue  # undone just now
        except (ValueError, KeyError, TypeError) as broken:
            raise UsageError(f"{path} is no record of a fault ({broken}): look what it was, and remove it") from broken
        if fault_undo.is_gone(record):
            path.unlink(missing_ok=True)
        else:
            yield record


def run(
    fault: Fault, limits: Limits, record: Record, hands: Performs, watchdog: Watches, wait: Wait, tell: Tell
) -> Ending:
    """Do it, wait, undo it. Raises :class:`FaultNotDone` or :class:`FaultNotUndone`."""
    if not fault.undo:
        _do(fault.steps, hands)
        tell("done")
        return Ending.OVER
    write(record)
    life = _Life(fault, hands)
    stays = False
    try:
        watchdog.start(record)
        ending = _live(fault, limits, life, wait, tell)
        stays = ending is Ending.OVER and limits.stay
        return Ending.STAYS if stays else ending
    finally:
        if stays:
            watchdog.stay()
        else:
            _end(record, life, watchdog, tell)


class _Life:
    """Which steps are in force."""

    def __init__(self, fault: Fault, hands: Performs) -> None:
        self._steps = fault.steps
        self._hands = hands
        self._done: list[Step] = []

    def do(self) -> None:
        """All steps, if they are not done. One that fails counts as done: it may have happened in part."""
        for step in () if self._done else self._steps:
            self._done.append(step)
            _do((step,), self._hands)

    def undo(self) -> list[str]:
        """What is in force, in reverse; returns what went wrong, which remains to be undone."""
        wrong, left = [], []
        for step in reversed(self._done):
            for operation in step.undo:
                try:
                    self._hands.perform(operation)
                except OSError as error:
                    wrong.append(f"{operation.shown}: {error.strerror or error}")
                    left.append(step)
        self._done = left[::-1]
        return wrong


def _do(steps: tuple[Step, ...], hands: Performs) -> None:
    for step in steps:
        try:
            hands.perform(step.do)
        except OSError as error:
            known = {errno.ENOENT: step.if_absent, errno.EPERM: "not permitted: this needs root (sudo)"}
            why = known.get(error.errno or 0) or error.strerror or error
            raise FaultNotDone(f"{step.do.shown}: {why}") from error


def _live(fault: Fault, limits: Limits, life: _Life, wait: Wait, tell: Tell) -> Ending:
    if not fault.request.phases:
        life.do()
        tell("done")
        return Ending.OVER if limits.stay else _ending(wait(limits.for_s))
    left_s = float("inf") if limits.for_s is None else limits.for_s
    for _ in range(fault.request.times):
        for phase in fault.request.phases:
            if left_s <= 0:
                return Ending.OVER
            if phase.down:
                life.do()
            elif wrong := life.undo():
                raise FaultNotUndone("; ".join(wrong))
            tell("down" if phase.down else "up")
            if (why := wait(min(phase.seconds, left_s))) != "over":
                return _ending(why)
            left_s -= phase.seconds
    return Ending.OVER


def _ending(why: str) -> Ending:
    return {"over": Ending.OVER, "signal": Ending.SIGNAL, "watchdog": Ending.WATCHDOG}[why]


def _end(record: Record, life: _Life, watchdog: Watches, tell: Tell) -> None:
    wrong = life.undo()
    if wrong:
        watchdog.leave()
        if Path(record.file).exists():
            undo = f"r2ccl fault-inject undo {record.identity}"
            raise FaultNotUndone(f"{record.title} is not all undone: {'; '.join(wrong)}; try: {undo}")
    else:
        Path(record.file).unlink(missing_ok=True)
        watchdog.done()
    tell("undone")
