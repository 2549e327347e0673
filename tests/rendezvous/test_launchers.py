"""What launchers say in words of their own, and which of them is believed."""

from __future__ import annotations

import pytest

from r2ccl.errors import ConfigurationError
from r2ccl.protocol.handshake_messages import is_name
from r2ccl.rendezvous.launch import Placement, place
from r2ccl.rendezvous.launchers import FIRST_PORT, WINDOW_PORTS, WINDOWS, port_of
from r2ccl.rendezvous.meeting import PORTS_TRIED

#: As Open MPI 5.0.11 set them, less what says nothing of the job.
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_NAMESPACE": "prterun-vm-12192@1",
    "PMIX_RANK": "2",
}
#: As MPICH 5.0.2 and Intel MPI 2021.19 set them.
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3", "PMI_FD": "11"}
INTEL = {**MPICH, "I_MPI_HYDRA_UUID": "7f6a0000-8750-34ec-7561-060080ec9105"}
#: As a task of `srun -n 8` has them on the second of four nodes of a batch job with 64 tasks.
SRUN = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "node[003-005,010]",
    "SLURM_JOB_NODELIST": "node[001-010]",
    "SLURM_DISTRIBUTION": "cyclic,cyclic",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "1234",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "node[003-005,010]",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "train-0.train", "MASTER_PORT": "29500"}
MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_mpirun_on_one_machine_needs_nothing_else():
    port = port_of("prterun-vm-12192@1")
    expected = Placement(
        2, 3, 1, "127.0.0.1", port, "mpirun", "mpirun, job id prterun-vm-12192@1", job_id="prterun-vm-12192@1"
    )
    assert place(MPIRUN) == expected
    assert expected.describe() == (
        f"placement: rank=2 size=3 local_rank=1 (mpirun) rendezvous=tcp://127.0.0.1:{port} "
        "(mpirun, job id prterun-vm-12192@1)"
    )


def test_mpirun_on_several_hosts_must_be_told_where_rank_0_is():
    several = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(ConfigurationError, match="missing: MASTER_ADDR,.*started 2 of the 3 ranks.*rendezvous="):
        place(several)
    told = place(several, rendezvous="tcp://node0:29500")
    assert (told.rank, told.size, told.local_rank, told.host, told.port) == (2, 3, 1, "node0", 29500)
    assert not told.is_loopback
    half_told = place({**several, "MASTER_ADDR": "node0"})
    assert (half_told.host, half_told.port) == ("node0", port_of("prterun-vm-12192@1"))
    assert half_told.met_by == "MASTER_ADDR, job id prterun-vm-12192@1"


def test_an_mpirun_that_says_less_is_not_taken_to_be_on_one_machine():
    silent = {name: value for name, value in MPIRUN.items() if name != "OMPI_COMM_WORLD_LOCAL_SIZE"}
    with pytest.raises(ConfigurationError, match="does not say how many of the 3 ranks on this machine"):
        place(silent)
    del silent["OMPI_COMM_WORLD_SIZE"]
    with pytest.raises(ConfigurationError, match=r"missing: WORLD_SIZE \(size=\);"):
        place(silent)


def test_mpich_gives_the_job_no_name_and_intel_does():
    with pytest.raises(
        ConfigurationError, match="missing: MASTER_PORT,.*MPICH's mpiexec gives the job no name.*rendez"
    ):
        place(MPICH)
    port_told = place({**MPICH, "MASTER_PORT": "4000"})
    assert (port_told.rank, port_told.size, port_told.local_rank) == (1, 3, 1)
    assert (port_told.host, port_told.port, port_told.job_name("")) == ("127.0.0.1", 4000, "port-4000")
    intel = place(INTEL)
    assert (intel.host, intel.port) == ("127.0.0.1", port_of(INTEL["I_MPI_HYDRA_UUID"]))
    with pytest.raises(ConfigurationError, match="missing: MASTER_ADDR,.*started 2 of the 3 ranks"):
        place({**INTEL, "MPI_LOCALNRANKS": "2"})


def test_srun_meets_on_the_first_host_of_the_step():
    placement = place(SRUN)
    assert (placement.rank, placement.size, placement.local_rank, placement.source) == (3, 8, 1, "srun")
    assert (placement.host, placement.port) == ("node003", port_of("1234.0"))
    assert placement.job_name("") == "job-1234.0"
    assert not placement.is_loopback


def test_srun_without_a_list_of_the_step_takes_the_job_s():
    of_job = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NODELIST"}
    assert place(of_job).host == "node001"
    del of_job["SLURM_JOB_NODELIST"]
    with pytest.raises(ConfigurationError, match="neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST"):
        place(of_job)
    with pytest.raises(ConfigurationError, match="SLURM_STEP_NODELIST: 'node.1-' is no list of hosts"):
        place({**SRUN, "SLURM_STEP_NODELIST": "node[1-"})


def test_srun_on_one_host_meets_on_loopback():
    placement = place({**SRUN, "SLURM_STEP_NODELIST": "node007"})
    assert placement.host == "127.0.0.1"
    assert placement.is_loopback


def test_the_size_is_that_of_the_step_and_not_of_the_allocation():
    assert place({**SRUN, "SLURM_NTASKS": "64"}).size == 8
    older = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert place(older).size == 8


def test_two_steps_of_one_slurm_job_do_not_meet():
    first, second = place(SRUN), place({**SRUN, "SLURM_STEP_ID": "1"})
    assert first.job_name("") != second.job_name("")


@pytest.mark.parametrize(
    "environ",
    [BATCH_SCRIPT, {**BATCH_SCRIPT, "SLURM_STEP_ID": "4294967291"}, {**SRUN, "SLURM_STEP_ID": "4294967290"}],
)
def test_a_batch_script_or_a_shell_is_no_task_of_the_job(environ):
    with pytest.raises(ConfigurationError, match="missing: RANK.*WORLD_SIZE.*start the program with srun"):
        place(environ)
    assert place({**environ, **MASTER, "RANK": "1", "WORLD_SIZE": "2"}).source == "environment"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"SLURM_HET_SIZE": "2"}, "missing: MASTER_ADDR and MASTER_PORT.*heterogeneous"),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "missing: MASTER_ADDR,.*puts rank 0 on any host"),
    ],
)
def test_where_srun_may_have_put_rank_0_anywhere_one_has_to_say(change, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        place({**SRUN, **change})
    told = place({**SRUN, **change, **MASTER})
    assert (told.rank, told.size, told.host, told.port) == (3, 8, "node0", 29500)


def test_an_indexed_job_of_kubernetes_gives_the_rank_and_nothing_else():
    placement = place(KUBERNETES)
    assert placement == Placement(
        2, 4, None, "train-0.train", 29500, "Kubernetes and environment", "MASTER_ADDR, MASTER_PORT"
    )
    index = {"JOB_COMPLETION_INDEX": "2"}
    with pytest.raises(ConfigurationError, match=r"missing: WORLD_SIZE \(size=\);"):
        place(index)
    with pytest.raises(ConfigurationError, match="missing: MASTER_ADDR and MASTER_PORT,.*pod of index 0.*rendezvous="):
        place(index, size=4)
    told = place(index, size=4, rendezvous="tcp://train-0.train:29500")
    assert (told.rank, told.size, told.source) == (2, 4, "Kubernetes and arguments")


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        ({**KUBERNETES, **SRUN, **MPICH, **MPIRUN, "RANK": "0", "WORLD_SIZE": "2"}, "environment"),
        ({**SRUN, **MPICH, **MPIRUN}, "mpirun"),
        ({**SRUN, **INTEL}, "MPICH's mpiexec"),
        ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "8"}, "srun"),
        ({**BATCH_SCRIPT, **INTEL}, "MPICH's mpiexec"),
        ({**SRUN, "JOB_COMPLETION_INDEX": "0"}, "srun"),
    ],
)
def test_the_nearest_launcher_is_believed(environ, source):
    assert place({"MASTER_PORT": "4000", **environ}, rendezvous="tcp://node0:1").source == source


def test_a_local_rank_is_the_environment_s_or_that_of_the_launcher_that_gave_the_rank():
    assert place({**MPIRUN, "LOCAL_RANK": "7"}).local_rank == 7
    assert place({**MPIRUN, **MASTER, "RANK": "0", "WORLD_SIZE": "2"}).local_rank is None
    assert place({**MPIRUN, **MASTER}, rank=0).local_rank is None
    assert place(MPIRUN, local_rank=5).local_rank == 5


def test_a_size_that_the_launcher_denies_is_refused():
    with pytest.raises(ConfigurationError, match=r"size is 8 \(environment\), but mpirun,.*rank 2, started 3 ranks"):
        place({**MPIRUN, "WORLD_SIZE": "8"})
    with pytest.raises(ConfigurationError, match=r"size is 4 \(arguments\), but srun"):
        place(SRUN, size=4)
    assert place({**MPIRUN, "WORLD_SIZE": "3"}).size == 3


def test_ranks_that_do_not_come_from_the_launcher_do_not_meet_by_it():
    with pytest.raises(ConfigurationError, match="missing: MASTER_ADDR and MASTER_PORT"):
        place(MPIRUN, rank=0, size=3)
    placement = place({**MPIRUN, **MASTER}, rank=0)
    assert (placement.size, placement.source) == (3, "arguments and mpirun")
    assert placement.job_name("") == "port-29500"


def test_what_a_launcher_left_behind_does_not_matter_to_who_knows_its_rank():
    broken = {"OMPI_COMM_WORLD_RANK": "many", "SLURM_PROCID": "x", **MASTER}
    assert place({**broken, "RANK": "0", "WORLD_SIZE": "2"}).rank == 0
    with pytest.raises(ConfigurationError, match="OMPI_COMM_WORLD_RANK='many' is not a number"):
        place(broken)


def test_two_jobs_with_one_port_differ_by_the_launcher_s_name_for_them():
    one, other = (place({**MPIRUN, **MASTER, "PMIX_NAMESPACE": name}) for name in ("prterun-vm-1@1", "prterun-vm-2@1"))
    assert one.port == other.port
    assert one.job_name("") == "job-prterun-vm-1@1" != other.job_name("")
    assert one.job_name("train") == "train"


@pytest.mark.parametrize("job_id", ["prterun-" + "x" * 250 + "@1", "prterun-\udcff-1@1", "prterun-é@1"])
def test_any_name_of_a_job_fits_into_the_handshake(job_id):
    name = place({**MPIRUN, "PMIX_NAMESPACE": job_id}).job_name("")
    assert is_name(name)
    assert name.isascii()


def test_windows_of_ports_are_as_wide_as_the_search_and_below_ephemeral_ports():
    assert WINDOW_PORTS == PORTS_TRIED
    ports = {port_of(f"prterun-vm-{pid}@1") for pid in range(20_000)}
    assert ports == {FIRST_PORT + WINDOW_PORTS * window for window in range(WINDOWS)}
    assert max(ports) + WINDOW_PORTS - 1 == 28191
    assert port_of("1234.0") == port_of("1234.0")
