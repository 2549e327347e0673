"""r2ccl as a backend of torch.distributed: training goes on through the loss of a NIC.

    import torch.distributed as dist
    import r2ccl.torch_backend

    dist.init_process_group("r2ccl")

The import registers the backend. See docs/torch.md.
"""

from r2ccl.torch_backend.backend import Backend
from r2ccl.torch_backend.group import Failure
from r2ccl.torch_backend.inside import communicator, dump_flight_recorder, failure, monitored_barrier, shrink, survivors
from r2ccl.torch_backend.process_group import ProcessGroup
from r2ccl.torch_backend.registration import register
from r2ccl.torch_backend.works import Work

__all__ = [
    "Backend",
    "Failure",
    "ProcessGroup",
    "Work",
    "communicator",
    "dump_flight_recorder",
    "failure",
    "monitored_barrier",
    "register",
    "shrink",
    "survivors",
]

register()
