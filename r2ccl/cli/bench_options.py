"""What was asked of ``r2ccl bench``, checked before anything is started.

Flags mean what they mean to nccl-tests, but for ``-n``, which is the number of ranks as in ``r2ccl run``; sizes have
its suffixes, and its short names of dtypes and ops are understood beside ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from r2ccl.cli.bench_collectives import COLLECTIVES, Collective
from r2ccl.cli.bench_data import CannotCheck, dtype_named, numbers
from r2ccl.cli.launcher import NICS_PER_RANK_MAX, RANKS_MAX
from r2ccl.errors import UsageError
from r2ccl.reduction import Op, supported

PEERS: Final = ("gloo", "openmpi", "mptcp")
#: Beyond, a plain baseline has no more to say.
MPTCP_COLLECTIVES: Final = ("all_reduce", "sendrecv")
#: Answers hold two numbers for each iteration.
ITERATIONS_MAX: Final = 100_000
#: How many operations fill a turn when the time is given; fewer than three have no median.
FILLING_MIN, FILLING_MAX = 3, 2000
SIZES_MAX: Final = 1000
SIZE_BYTES_MAX: Final = 1 << 40
_UNITS: Final = MappingProxyType({"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30})
_DTYPES: Final = MappingProxyType({"float": "float32", "half": "float16", "double": "float64", "char": "int8"})
_OPS: Final = MappingProxyType({"prod": "product", "avg": "average"})
DTYPES: Final = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    collective: str
    ranks: int = 2
    minbytes: str = "4"
    maxbytes: str = "128M"
    stepfactor: float | None = None
    stepbytes: str | None = None
    iterations: int = 20
    seconds: float | None = None
    warmup: int = 5
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    checks: int = 1
    nics_per_rank: int = 1
    peer: str | None = None
    peer_python: str | None = None
    rounds: int | None = None
    timeout_s: float = 300.0
    damage: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """The same, checked."""

    collective: Collective
    ranks: int
    #: Elements of a rank's part, ascending.
    counts: tuple[int, ...]
    step: str
    iterations: int
    seconds: float | None
    warmup: int
    dtype: str
    item_bytes: int
    #: Empty where nothing is reduced.
    op: str
    #: -1 where there is no root.
    root: int
    checks: int
    nics_per_rank: int
    peer: str | None
    peer_python: str | None
    rounds: int
    timeout_s: float
    damage: int

    def size_of(self, count: int) -> int:
        """Bytes."""
        return self.collective.size_of(count, self.item_bytes, self.ranks)


def parse_size(text: str, flag: str) -> int:
    """``4``, ``64K``, ``1.5M``, ``2G``: powers of 1024. Raises :class:`UsageError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(f"{flag} {text}: a size is a number of bytes, or one with K, M or G behind it")
    size = int(float(match[1]) * _UNITS[match[2]])
    if not 1 <= size <= SIZE_BYTES_MAX:
        raise UsageError(f"{flag} {text}: a size is from 1 byte to 1024G")
    return size


def sizes(minbytes: int, maxbytes: int, factor: float | None, step: int | None) -> list[int]:
    """From the smallest to the largest, multiplied or added to. Raises :class:`UsageError`."""
    if minbytes > maxbytes:
        raise UsageError(f"-b {minbytes} is more than -e {maxbytes}: the smallest size comes first")
    if factor is not None and step is not None:
        raise UsageError("-f multiplies and -i adds: pass one of them")
    if factor is not None and not 1.01 <= factor <= SIZE_BYTES_MAX:
        raise UsageError(f"-f {factor:g}: the factor between sizes is more than 1")
    found = [minbytes]
    while len(found) <= SIZES_MAX:
        following = found[-1] + step if step is not None else max(found[-1] + 1, int(found[-1] * (factor or 4.0)))
        if following > maxbytes:
            return found
        found.append(following)
    raise UsageError(f"that is more than {SIZES_MAX} sizes: take larger steps")


def check(asked: Asked) -> Options:
    """Raises :class:`UsageError`."""
    collective = _collective(asked.collective)
    dtype, dtype_name = _dtype(asked.dtype)
    _check_ranks(asked, collective)
    _check_amounts(asked)
    op = _op(asked.op, dtype, dtype_name) if collective.reduces else ""
    if asked.checks and collective.has_data:
        _check_checkable(dtype, op, asked.ranks)
    _check_peer(asked, collective)
    step = None if asked.stepbytes is None else parse_size(asked.stepbytes, "-i")
    wanted = sizes(parse_size(asked.minbytes, "-b"), parse_size(asked.maxbytes, "-e"), asked.stepfactor, step)
    counts = [collective.count_of(size, dtype.itemsize, asked.ranks) for size in wanted]
    return Options(
        collective=collective,
        ranks=asked.ranks,
        # Several small sizes may come down to one element each.
        counts=tuple(dict.fromkeys(counts)),
        step=f"{step}(bytes)" if step is not None else f"{asked.stepfactor or 4.0:g}(factor)",
        iterations=asked.iterations,
        seconds=asked.seconds,
        warmup=asked.warmup,
        dtype=dtype_name,
        item_bytes=dtype.itemsize,
        op=op,
        root=asked.root if collective.has_root else -1,
        checks=asked.checks,
        nics_per_rank=asked.nics_per_rank,
        peer=asked.peer,
        peer_python=asked.peer_python,
        rounds=asked.rounds if asked.rounds is not None else 5 if asked.peer else 1,
        timeout_s=asked.timeout_s,
        damage=asked.damage,
    )


def _collective(name: str) -> Collective:
    found = COLLECTIVES.get(name)
    if found is None:
        raise UsageError(f"there is no collective {name}; there are {', '.join(COLLECTIVES)}")
    return found


def _dtype(name: str) -> tuple[np.dtype[Any], str]:
    full = _DTYPES.get(name, name)
    if full not in DTYPES:
        raise UsageError(f"-d {name}: there is no such dtype; there are {', '.join(DTYPES)}")
    try:
        return dtype_named(full), full
    except ImportError as missing:
        raise UsageError("-d bfloat16 needs the package ml_dtypes: pip install 'r2ccl[bfloat16]'") from missing


def _op(name: str, dtype: np.dtype[Any], dtype_name: str) -> str:
    full = _OPS.get(name, name)
    if full not in set(Op):
        raise UsageError(f"-o {name}: there is no such op; there are {', '.join(Op)}")
    if not supported(dtype, Op(full)):
        raise UsageError(f"-o {name}: {full} is not defined for {dtype_name}")
    return full


def _check_ranks(asked: Asked, collective: Collective) -> None:
    if not 1 <= asked.ranks <= RANKS_MAX:
        raise UsageError(f"-n {asked.ranks}: there may be 1 to {RANKS_MAX} ranks")
    if asked.ranks < 2 and (asked.peer or collective.name == "sendrecv"):
        raise UsageError(f"-n {asked.ranks}: {'a peer' if asked.peer else 'sendrecv'} needs at least 2 ranks")
    if not 1 <= asked.nics_per_rank <= NICS_PER_RANK_MAX:
        raise UsageError(f"--nics-per-rank {asked.nics_per_rank}: there may be 1 to {NICS_PER_RANK_MAX}")
    if collective.has_root and not 0 <= asked.root < asked.ranks:
        raise UsageError(f"-r {asked.root}: ranks go from 0 to {asked.ranks - 1}")


def _check_amounts(asked: Asked) -> None:
    if not 1 <= asked.iterations <= ITERATIONS_MAX:
        raise UsageError(f"--iters {asked.iterations}: there may be 1 to {ITERATIONS_MAX} iterations")
    if asked.seconds is not None and not 0 < asked.seconds <= 3600:
        raise UsageError(f"--seconds {asked.seconds:g}: a turn takes more than 0 and up to 3600 seconds")
    if not 0 <= asked.warmup <= ITERATIONS_MAX:
        raise UsageError(f"-w {asked.warmup}: there may be 0 to {ITERATIONS_MAX} iterations to warm up")
    if not 0 <= asked.checks <= 1000:
        raise UsageError(f"-c {asked.checks}: how many operations to check, 0 to 1000")
    if asked.rounds is not None and not 1 <= asked.rounds <= 1000:
        raise UsageError(f"--rounds {asked.rounds}: there may be 1 to 1000 rounds")
    if not asked.timeout_s > 0:
        raise UsageError(f"-T {asked.timeout_s:g}: a turn must be given some seconds")


def _check_checkable(dtype: np.dtype[Any], op: str, ranks: int) -> None:
    try:
        numbers(dtype, op, 0, ranks, 0)
    except CannotCheck as why:
        raise UsageError(str(why)) from why


def _check_peer(asked: Asked, collective: Collective) -> None:
    if asked.peer is None:
        return
    if asked.peer not in PEERS:
        raise UsageError(f"--peer {asked.peer}: there is no such peer; there are {', '.join(PEERS)}")
    if asked.peer == "mptcp" and collective.name not in MPTCP_COLLECTIVES:
        raise UsageError(f"--peer mptcp: plain sockets do {' and '.join(MPTCP_COLLECTIVES)} only")
