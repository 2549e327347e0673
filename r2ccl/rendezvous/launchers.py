"""What each launcher tells a process of its job: mpirun, srun, an indexed job of Kubernetes.

A launcher is recognised by the rank that it gave out. It may also know enough for the ranks to meet without being told
where: that takes a host on which rank 0 surely is, and a name of the job that no other job has, which becomes a port.
Ports come from one range, cut into windows as wide as the search for rank 0 (see search.py): two jobs are in the same
window or in two that have nothing in common. Jobs in the same window take the next free port and tell each other apart
by the job's name in the handshake, so chance cannot mix them.

The variables are as measured with Open MPI 4.1.8 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.19, and as documented for
SLURM and Kubernetes. The order matters: mpirun may itself start its helpers by srun, whose variables then mean those.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from r2ccl.errors import ConfigurationError
from r2ccl.rendezvous.hostlist import expand

#: Below the ports that systems give out on their own (32768 and up on Linux) and away from torchrun's 29500.
FIRST_PORT = 20000
WINDOWS = 512
#: Ports that the search for rank 0 tries, ``meeting.PORTS_TRIED``.
WINDOW_PORTS = 16

_LOOPBACK = "127.0.0.1"
#: SLURM's numbers of steps that are none: batch script, interactive shell, and so on.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher said to one process."""

    #: As in the log: ``mpirun``, ``MPICH's mpiexec``, ``srun``, ``Kubernetes``.
    launcher: str
    rank: int
    #: None: the launcher does not tell.
    size: int | None
    local_rank: int | None
    #: Tells this job from all others; empty: the launcher does not tell.
    job_id: str = ""
    #: Where rank 0 is, if the launcher lets that be known, else why not.
    host: str = ""
    no_host: str = ""

    @property
    def port(self) -> int | None:
        """Where the search for rank 0 begins."""
        return port_of(self.job_id) if self.job_id else None


def port_of(job_id: str) -> int:
    """The first port of the job's window, between 20000 and 28176. The same on every machine."""
    return FIRST_PORT + WINDOW_PORTS * (zlib.crc32(job_id.encode(errors="replace")) % WINDOWS)


def launched_by(environ: Mapping[str, str]) -> Launched | None:
    """What the innermost launcher says, or None. Raises :class:`ConfigurationError` for what is no number."""
    for read in (_open_mpi, _mpich, _slurm, _kubernetes):
        launched = read(environ)
        if launched is not None:
            return launched
    return None


def hint(environ: Mapping[str, str]) -> str:
    """What somebody has overlooked who is not told a rank though a launcher is near; may be empty."""
    if environ.get("SLURM_JOB_ID") and not _is_slurm_task(environ):
        return "; this is not a task of the SLURM job but its batch script or a shell: start the program with srun"
    return ""


def number(environ: Mapping[str, str], variable: str) -> int | None:
    """A variable's value; None if it is not set or blank. Raises :class:`ConfigurationError`."""
    text = environ.get(variable, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable}={text!r} is not a number") from None


def _open_mpi(environ: Mapping[str, str]) -> Launched | None:
    rank = number(environ, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    size = number(environ, "OMPI_COMM_WORLD_SIZE")
    here = number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    return Launched(
        launcher="mpirun",
        rank=rank,
        size=size,
        local_rank=number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        # prterun-HOST-PID@1 in version 5, a number in version 4. The same in all ranks, on all hosts.
        job_id=environ.get("PMIX_NAMESPACE", "").strip(),
        host="" if here is None or here != size else _LOOPBACK,
        no_host=_elsewhere("mpirun", here, size),
    )


def _mpich(environ: Mapping[str, str]) -> Launched | None:
    rank = number(environ, "PMI_RANK")
    here = number(environ, "MPI_LOCALNRANKS")
    # srun sets PMI_RANK too, for the programs that speak PMI with it. Only MPICH's mpiexec says who is local.
    if rank is None or (here is None and _is_slurm_task(environ)):
        return None
    size = number(environ, "PMI_SIZE")
    return Launched(
        launcher="MPICH's mpiexec",
        rank=rank,
        size=size,
        local_rank=number(environ, "MPI_LOCALRANKID"),
        # Intel's gives the job a name, MPICH's own does not.
        job_id=environ.get("I_MPI_HYDRA_UUID", "").strip(),
        host="" if here is None or here != size else _LOOPBACK,
        no_host=_elsewhere("MPICH's mpiexec", here, size),
    )


def _elsewhere(launcher: str, here: int | None, size: int | None) -> str:
    some = "does not say how many" if here is None else f"started {here}"
    return f"{launcher} {some} of the {size} ranks on this machine and does not say where rank 0 is"


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Whether srun started us as one task of a step.

    A batch script has SLURM_PROCID=0 and perhaps SLURM_NTASKS=64 and runs alone; what it lacks is a step. An
    interactive shell has one, with a number that is none.
    """
    step = number(environ, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_SPECIAL_STEP


def _slurm(environ: Mapping[str, str]) -> Launched | None:
    rank = number(environ, "SLURM_PROCID")
    if rank is None or not _is_slurm_task(environ):
        return None
    size = number(environ, "SLURM_STEP_NUM_TASKS")
    job, step = environ.get("SLURM_JOB_ID", "").strip(), environ["SLURM_STEP_ID"].strip()
    host, no_host = _first_slurm_host(environ)
    return Launched(
        launcher="srun",
        rank=rank,
        # SLURM_NTASKS is the step's too, but where it is not set anew the allocation's shines through.
        size=number(environ, "SLURM_NTASKS") if size is None else size,
        local_rank=number(environ, "SLURM_LOCALID"),
        # The parts of a heterogeneous job have different job ids.
        job_id="" if not job or _is_heterogeneous(environ) else f"{job}.{step}",
        host=host,
        no_host=no_host,
    )


def _is_heterogeneous(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_HET_SIZE", "").strip())


def _first_slurm_host(environ: Mapping[str, str]) -> tuple[str, str]:
    """The host of rank 0, or why it is not known."""
    if _is_heterogeneous(environ):
        return "", "the SLURM job is heterogeneous"
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        return "", "srun --distribution=arbitrary puts rank 0 on any host"
    variable = "SLURM_STEP_NODELIST" if environ.get("SLURM_STEP_NODELIST", "").strip() else "SLURM_JOB_NODELIST"
    hostlist = environ.get(variable, "").strip()
    if not hostlist:
        return "", "srun sets neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST"
    try:
        hosts = expand(hostlist)
    except ValueError as wrong:
        raise ConfigurationError(f"{variable}: {wrong}") from wrong
    return _LOOPBACK if len(hosts) == 1 else hosts[0], ""


def _kubernetes(environ: Mapping[str, str]) -> Launched | None:
    index = number(environ, "JOB_COMPLETION_INDEX")
    if index is None:
        return None
    return Launched("Kubernetes", index, None, None, no_host="Kubernetes does not say where the pod of index 0 is")
