"""What an error of a socket says about the other end."""

from __future__ import annotations

import errno
from typing import Final

from r2ccl.transport.interface import Loss

_LOSSES: Final = {
    errno.ECONNREFUSED: Loss.REFUSED,
    errno.ECONNRESET: Loss.RESET,
    errno.EPIPE: Loss.RESET,
    errno.ECONNABORTED: Loss.RESET,
}


def loss_of(error: OSError) -> Loss:
    """What an error of a socket means. All that is not a clear word of the peer's kernel is a path that fails."""
    return _LOSSES.get(error.errno or 0, Loss.UNREACHABLE)
