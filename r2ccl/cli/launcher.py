"""``r2ccl run``: all ranks of a job on this machine, over loopback, as one foreground command.

Each rank is a process group of its own, told by environment variables who it is. Lines are printed with the rank in
front. When a rank fails, the others would wait for it, so they are ended: asked first, killed after a moment. What the
user asks of the launcher (Ctrl-C, SIGTERM) is passed on. If the launcher itself is killed, the kernel kills the ranks
(see rank_process).

The job's secret is drawn here and handed down in the environment, which only the user's own processes can read; never
on a command line, which everybody can.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol, TypeVar

from r2ccl.cli import rank_process
from r2ccl.cli.forked import Nursery
from r2ccl.cli.voices import Console, Voice
from r2ccl.config import environment, job_secret, read_settings
from r2ccl.errors import UsageError
from r2ccl.rendezvous.free_port import free_port

#: From SIGTERM to SIGKILL: enough to write a checkpoint's last line, short enough to wait for.
END_GRACE_S = 5.0
#: A rank's own children may hold its pipes open; what they say this long after its end is not waited for.
_LAST_WORDS_S = 1.0
#: Addresses are 127.x.k.r with r from 1 to 250, x counting the 250s.
_RANKS_PER_BLOCK = 250
RANKS_MAX = 4096
NICS_PER_RANK_MAX = 64
SIGNAL_EXIT_BASE = 128
#: What shells answer for a command that is there and cannot be started.
_CANNOT_START = 126


class Launchable(Protocol):
    """Ranks that :func:`attend` starts and sees to their end."""

    @property
    def ranks(self) -> int:
        """How many."""

    def program(self, rank: int) -> tuple[str, ...]:
        """What is started as this rank: a process that dies with us, if the kernel can do that."""

    def environment(self, inherited: Mapping[str, str], rank: int) -> dict[str, str]:
        """All that one rank finds in its environment."""

    @property
    def script(self) -> tuple[str, ...]:
        """The Python script that all run by this interpreter, and its arguments; nothing: something else."""


class Child(Protocol):
    """A rank's process."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int:
        """Its exit code, negative for a signal's number."""


class Named(Protocol):
    """A dataclass that says what a job is called, and what its ranks prove themselves with."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """The job's."""

    @property
    def secret(self) -> str:
        """The job's."""


J = TypeVar("J", bound=Named)


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks of one launch share."""

    command: tuple[str, ...]
    ranks: int
    nics_per_rank: int
    port: int
    name: str
    secret: str = field(repr=False)
    #: What was named as a script, with its arguments: no module, and no interpreter of the user's choice.
    script: tuple[str, ...] = ()

    def program(self, rank: int) -> tuple[str, ...]:
        """The same for all."""
        return tied_to_us(self.command)

    def variables(self, rank: int) -> dict[str, str]:
        """What one rank finds in its environment."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "R2CCL_JOB": self.name,
            "R2CCL_SECRET": self.secret,
            "R2CCL_NICS": ",".join(loopback_nics(rank, self.nics_per_rank)),
            "PYTHONUNBUFFERED": "1",
        }

    def environment(self, inherited: Mapping[str, str], rank: int) -> dict[str, str]:
        """All that one rank finds in its environment."""
        kept = {name: value for name, value in inherited.items() if name not in NOT_HANDED_DOWN}
        return {**kept, **self.variables(rank)}


#: Settings of the user's shell that mean other NICs or another secret than a job on loopback has.
NOT_HANDED_DOWN = frozenset({"R2CCL_SECRET_FILE", "R2CCL_SPARE_NICS"})


def new_job(command: list[str], ranks: int, nics_per_rank: int) -> Job:
    """A job with a name, a secret and a port of its own. Raises :class:`UsageError`."""
    if not command:
        raise UsageError("no script to run; for example: r2ccl run -n 4 train.py")
    if not 1 <= ranks <= RANKS_MAX:
        raise UsageError(f"{ranks} ranks: there may be 1 to {RANKS_MAX}")
    if not 1 <= nics_per_rank <= NICS_PER_RANK_MAX:
        raise UsageError(f"{nics_per_rank} NICs per rank: there may be 1 to {NICS_PER_RANK_MAX}")
    name = f"run-{secrets.token_hex(8)}"
    script = tuple(command) if command[0].endswith(".py") else ()
    return Job(as_program(command), ranks, nics_per_rank, free_port(), name, secrets.token_hex(32), script)


def known_to_the_shell(job: J, inherited: Mapping[str, str]) -> J:
    """The same job, but where it takes faults with the name and the secret that the shell has for it, if it has any:
    else ``r2ccl fault-inject`` in that shell could not prove itself to its ranks."""
    settings = read_settings(inherited).settings
    if not settings.fault_injection:
        return job
    secret = job_secret(settings).decode(errors="surrogateescape")
    return dataclasses.replace(job, name=settings.job or job.name, secret=secret or job.secret)


def tied_to_us(command: Sequence[str]) -> tuple[str, ...]:
    """The command as a process of ours that the kernel kills when we die (see rank_process)."""
    return (sys.executable, "-I", "-S", str(Path(rank_process.__file__)), str(os.getpid()), *command)


def loopback_nics(rank: int, nics_per_rank: int, platform: str = sys.platform) -> list[str]:
    """Addresses that stand in for a rank's NICs: 127.0.k.r for NIC k of rank r, both from 1.

    Only Linux answers for all of 127.0.0.0/8; elsewhere NICs share 127.0.0.1 and differ by their ports.
    """
    if platform != "linux":
        return ["127.0.0.1"] * nics_per_rank
    block, last = divmod(rank, _RANKS_PER_BLOCK)
    return [f"127.{block}.{nic + 1}.{last + 1}" for nic in range(nics_per_rank)]


def launch(
    command: list[str],
    ranks: int,
    nics_per_rank: int = 1,
    *,
    environ: Mapping[str, str] | None = None,
    out: BinaryIO | None = None,
    err: BinaryIO | None = None,
) -> int:
    """Run a script (or ``-m module``, or any program) as ``ranks`` processes; returns the exit code to end with.

    That is 0, or the code of the first rank that failed; a rank ended by signal s counts as 128 + s, as in a shell.
    Raises :class:`UsageError`. Must be called on the main thread, which owns the signals.
    """
    inherited = environment() if environ is None else environ
    job = known_to_the_shell(new_job(command, ranks, nics_per_rank), inherited)
    return attend(job, inherited, out=out, err=err)


def attend(
    job: Launchable,
    inherited: Mapping[str, str],
    *,
    out: BinaryIO | None = None,
    err: BinaryIO | None = None,
    lifeline: socket.socket | None = None,
    title: str = "r2ccl run",
) -> int:
    """Start all ranks and wait for their end, as :func:`launch`; all are killed when the lifeline has an end."""
    console = Console(out or sys.stdout.buffer, err or sys.stderr.buffer, title)
    return asyncio.run(_Launch(job, inherited, console, lifeline).run())


def as_program(command: list[str]) -> tuple[str, ...]:
    """A script, or ``-m module``, by this interpreter; any other program as it is."""
    if command[0].endswith(".py") or command[0].startswith("-"):
        return (sys.executable, *command)
    return tuple(command)


class _Launch:
    """One launch, from first process to last."""

    def __init__(
        self, job: Launchable, inherited: Mapping[str, str], console: Console, lifeline: socket.socket | None
    ) -> None:
        self._job = job
        self._lifeline = lifeline
        self._inherited = inherited
        self._console = console
        self._processes: list[Child] = []
        #: Who forks the ranks; None: each is started by itself.
        self._nursery: Nursery | None = None
        #: Exit code of the first rank that failed.
        self._failure: int | None = None
        self._ending = False
        self._interrupted = False
        #: The last signal that all ranks were sent.
        self._passed_on: signal.Signals | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        # Under nohup a hang-up is not to end anything.
        hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        for ending in (signal.SIGTERM, *hang_up):
            loop.add_signal_handler(ending, self._end, ending)
        if self._lifeline is not None:
            loop.add_reader(self._lifeline, self._cut_off)
        try:
            if self._job.script and sys.platform == "linux" and self._job.ranks > len(os.sched_getaffinity(0)):
                unbuffered = {"PYTHONUNBUFFERED": "1"}
                self._nursery = Nursery(tied_to_us(()), {**self._inherited, **unbuffered})
            async with asyncio.TaskGroup() as group:
                for rank in range(self._job.ranks):
                    group.create_task(self._attend(rank))
        finally:
            # Also what ranks have left behind in their process groups, and all of it if we end by an error of our own.
            self._signal_all(signal.SIGKILL)
            if self._nursery is not None:
                self._nursery.close()
            if self._lifeline is not None:
                loop.remove_reader(self._lifeline)
            for handled in (signal.SIGINT, signal.SIGTERM, *hang_up):
                loop.remove_signal_handler(handled)
        return self._failure or 0

    async def _start(self, rank: int, out: int, err: int) -> Child | None:
        environ = self._job.environment(self._inherited, rank)
        process: Child
        try:
            if self._nursery is not None:
                process = await self._nursery.fork(self._job.script, environ, out, err)
            else:
                process = await asyncio.create_subprocess_exec(
                    *self._job.program(rank),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environ,
                    # A group of its own: Ctrl-C reaches a rank once, through us, and its children end with it.
                    start_new_session=True,
                )
        except OSError as failure:
            self._console.say(f"rank {rank} cannot be started: {failure.strerror or failure}")
            return None
        self._processes.append(process)
        if self._passed_on is not None:
            # What all were told while this one was being born.
            _signal_group(process, self._passed_on)
        return process

    async def _attend(self, rank: int) -> None:
        """One rank from birth to last words."""
        voices = [Voice(rank, stream, self._deaf) for stream in (self._console.out, self._console.err)]
        mouths = [await voice.open() for voice in voices]
        process = await self._start(rank, *mouths)
        for mouth in mouths:
            os.close(mouth)
        code = _CANNOT_START if process is None else await process.wait()
        if code != 0 and self._failure is None:
            self._fail(rank, code)
        await asyncio.wait([voice.ended for voice in voices], timeout=_LAST_WORDS_S)
        for voice in voices:
            voice.close()
            await voice.ended

    def _fail(self, rank: int, code: int) -> None:
        if code == -signal.SIGKILL and self._lifeline is not None and has_end(self._lifeline):
            # Whoever hung up kills then, and we may notice the second first.
            self._cut_off()
            return
        self._failure = code if code > 0 else SIGNAL_EXIT_BASE - code
        how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
        others = "" if self._ending or self._interrupted or self._job.ranks == 1 else "; ending the others"
        self._console.say(f"rank {rank} ended {how}{others}")
        self._end(signal.SIGTERM)

    def _deaf(self) -> None:
        """Nobody takes our output any more: it went into ``head``, which is gone, or onto a disk, which is full."""
        if self._failure is None:
            self._failure = SIGNAL_EXIT_BASE + signal.SIGPIPE
        self._end(signal.SIGTERM)

    def _cut_off(self) -> None:
        """Nobody says anything on the lifeline, so this is its end."""
        assert self._lifeline is not None
        asyncio.get_running_loop().remove_reader(self._lifeline)
        if self._failure is None:
            self._failure = _CANNOT_START
        self._console.say("where the ranks ran is gone; ending them")
        self._ending = True
        self._signal_all(signal.SIGKILL)

    def _interrupt(self) -> None:
        """Ctrl-C: the ranks decide what it means to them. The second one decides for them."""
        if self._interrupted:
            self._signal_all(signal.SIGKILL)
            return
        self._interrupted = True
        self._signal_all(signal.SIGINT)

    def _end(self, asked: signal.Signals) -> None:
        """Ask all ranks to end, and see to it that they do."""
        if self._ending:
            return
        self._ending = True
        self._signal_all(asked)
        asyncio.get_running_loop().call_later(END_GRACE_S, self._signal_all, signal.SIGKILL)

    def _signal_all(self, what: signal.Signals) -> None:
        self._passed_on = what
        for process in self._processes:
            _signal_group(process, what)


def has_end(lifeline: socket.socket) -> bool:
    """Whether the other side, which says nothing, has hung up."""
    return bool(select.select([lifeline], [], [], 0)[0])


def _signal_group(process: Child, what: signal.Signals) -> None:
    # A group that is gone needs no signal. It cannot be somebody else's: a number is not given out anew while a group
    # bears it, and hardly in the moment after.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, what)
