"""What tests of messages between two ranks share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from r2ccl import Work
from r2ccl.errors import R2cclError

Array = npt.NDArray[Any]
#: More than goes out from a copy; and more than a peer may send unasked (1 MiB).
BULKY, BEYOND_CREDIT = 100_000, 1_500_000


def message(number: int, count: int = 10) -> Array:
    return np.full(count, number, np.int32)


def room(count: int = 10) -> Array:
    return np.full(count, -1, np.int32)


def bulky(number: int, size: int) -> Array:
    return np.full(size // 4, number, np.int32)


async def failure(work: Work) -> R2cclError:
    with pytest.raises(R2cclError) as caught:
        await work
    return caught.value
