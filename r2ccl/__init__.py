"""r2ccl: collective communication that does not die with a NIC."""

from r2ccl._version import __version__
from r2ccl.actors.work import Work
from r2ccl.bootstrap import connect
from r2ccl.communicator import Communicator
from r2ccl.errors import (
    AuthenticationError,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorAborted,
    CommunicatorClosed,
    ConfigurationError,
    NetworkError,
    PeerLost,
    R2cclError,
    RendezvousError,
    UsageError,
)
from r2ccl.reduction import Op

SUM = Op.SUM
PRODUCT = Op.PRODUCT
MIN = Op.MIN
MAX = Op.MAX

__all__ = [
    "MAX",
    "MIN",
    "PRODUCT",
    "SUM",
    "AuthenticationError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Communicator",
    "CommunicatorAborted",
    "CommunicatorClosed",
    "ConfigurationError",
    "NetworkError",
    "Op",
    "PeerLost",
    "R2cclError",
    "RendezvousError",
    "UsageError",
    "Work",
    "__version__",
    "connect",
]
