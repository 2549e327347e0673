"""r2ccl: collective communication that does not die with a NIC."""

from r2ccl._version import __version__
from r2ccl.actors.work import Work
from r2ccl.batch import Batch
from r2ccl.bootstrap import connect
from r2ccl.communicator import Communicator
from r2ccl.errors import (
    AuthenticationError,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorAborted,
    CommunicatorClosed,
    ConfigurationError,
    Evicted,
    NetworkError,
    NoQuorum,
    PeerLost,
    R2cclError,
    RendezvousError,
    UsageError,
)
from r2ccl.reduction import Op
from r2ccl.vocabulary import ANY

SUM = Op.SUM
PRODUCT = Op.PRODUCT
MIN = Op.MIN
MAX = Op.MAX
AVERAGE = Op.AVERAGE
BITWISE_AND = Op.BITWISE_AND
BITWISE_OR = Op.BITWISE_OR
BITWISE_XOR = Op.BITWISE_XOR
LOGICAL_AND = Op.LOGICAL_AND
LOGICAL_OR = Op.LOGICAL_OR
LOGICAL_XOR = Op.LOGICAL_XOR

__all__ = [
    "ANY",
    "AVERAGE",
    "BITWISE_AND",
    "BITWISE_OR",
    "BITWISE_XOR",
    "LOGICAL_AND",
    "LOGICAL_OR",
    "LOGICAL_XOR",
    "MAX",
    "MIN",
    "PRODUCT",
    "SUM",
    "AuthenticationError",
    "Batch",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Communicator",
    "CommunicatorAborted",
    "CommunicatorClosed",
    "ConfigurationError",
    "Evicted",
    "NetworkError",
    "NoQuorum",
    "Op",
    "PeerLost",
    "R2cclError",
    "RendezvousError",
    "UsageError",
    "Work",
    "__version__",
    "connect",
]
