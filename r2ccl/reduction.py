"""How two operands become one, to the bit.

All ranks must end with the same bits, and a repaired collective with the bits of an unharmed one. So the schedule
decides which operand is the left one, and every function here keeps that order: ``max(0.0, -0.0)`` and the payload of
NaN + NaN depend on it. The kernel is numpy's everywhere; :func:`kernel_name` is part of every call's fingerprint, so
that ranks with unlike kernels notice before they mix sums. Torch's half-precision kernels would be faster, but a rank
that has not loaded torch would then round for itself.

Two things that numpy does must be known. Given one element and the left operand as output, its float addition takes
the right NaN; so single elements go through a temporary. And where both operands are NaN, the last elements of a longer
array, those that fill no vector register, may take the right payload: bits are a function of operands, order and
position *in the piece*. Pieces are the schedule's chunks, which are the same everywhere, so all ranks still agree.

Half-precision sums are the exception that is not left to numpy alone: see :class:`_WidenedSum`.
"""

from __future__ import annotations

import contextvars
import enum
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from r2ccl.errors import UsageError

Array = npt.NDArray[Any]
_Words = npt.NDArray[np.int32]
_Constant = npt.NDArray[np.int32]


class Reducer(Protocol):
    """Combines ``received`` with the own operand into ``destination``: equal-length arrays, of which none but the own
    operand may share memory with ``destination``. It may hold scratch memory, so each thread needs its own."""

    def __call__(self, destination: Array, received: Array, received_first: bool, own: Array | None = None) -> None:
        """``own`` is ``destination`` if it isn't given."""


class Op(enum.StrEnum):
    """How elements are combined. Integer sums and products wrap around; of bools SUM is *or* and PRODUCT is *and*.

    AVERAGE is of floats only: the sum, divided once by the number of ranks, so it overflows where the sum does.
    Bitwise and logical ones are of integers and bools; logical ones leave 0 and 1.
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVERAGE = "average"
    BITWISE_AND = "bitwise_and"
    BITWISE_OR = "bitwise_or"
    BITWISE_XOR = "bitwise_xor"
    LOGICAL_AND = "logical_and"
    LOGICAL_OR = "logical_or"
    LOGICAL_XOR = "logical_xor"


_UFUNCS = MappingProxyType(
    {
        Op.SUM: np.add,
        Op.PRODUCT: np.multiply,
        Op.MIN: np.minimum,
        Op.MAX: np.maximum,
        Op.AVERAGE: np.add,
        Op.BITWISE_AND: np.bitwise_and,
        Op.BITWISE_OR: np.bitwise_or,
        Op.BITWISE_XOR: np.bitwise_xor,
        Op.LOGICAL_AND: np.logical_and,
        Op.LOGICAL_OR: np.logical_or,
        Op.LOGICAL_XOR: np.logical_xor,
    }
)
_BITWISE = (Op.BITWISE_AND, Op.BITWISE_OR, Op.BITWISE_XOR)
_LOGICAL = (Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR)

#: What is done to the result, in place, when nothing is combined any more.
Finish = Callable[[Array], None]

#: Counts the changes of this file that change bits.
_KERNEL_REVISION = 1


def _constant(value: int) -> _Constant:
    """An operand that numpy need not convert at each call."""
    constant = np.array(value, np.uint32).view(np.int32)
    constant.flags.writeable = False
    return constant


_1, _13, _16 = _constant(1), _constant(13), _constant(16)
_BELOW_HALF_OF_13, _BELOW_HALF_OF_16 = _constant(0x0FFF), _constant(0x7FFF)
_SIGN_AND_FLOAT16, _SIGN_OF_16 = _constant(0x8FFFE000), _constant(0x8000)
_TO_SIZE, _FROM_SIZE, _SUBNORMAL = np.float32(2.0**112), np.float32(2.0**-112), np.float32(2.0**-136)


def kernel_name() -> str:
    """What ranks must have in common for their reductions to give the same bits."""
    return f"numpy-{np.__version__.split('.', 1)[0]}/{_KERNEL_REVISION}"


def supported(dtype: np.dtype[Any], op: Op) -> bool:
    """Whether elements of ``dtype`` can be combined by ``op``. Complex numbers have no order, so no MIN and MAX."""
    if dtype.kind == "c":
        return op in (Op.SUM, Op.PRODUCT)
    if dtype.kind in "bui":
        return op is not Op.AVERAGE
    is_float = dtype.type in (np.float16, np.float32, np.float64) or _is_bfloat16(dtype)
    return is_float and op not in _BITWISE and op not in _LOGICAL


def refuse_unsupported(dtype: np.dtype[Any], op: Op) -> None:
    """Raises :class:`UsageError` where :func:`supported` is False."""
    if not supported(dtype, op):
        raise UsageError(f"{op} is not defined for {dtype}")


def reducer(dtype: np.dtype[Any], op: Op) -> Reducer:
    """The function that combines pieces of ``dtype``. Raises :class:`UsageError` where :func:`supported` is False."""
    refuse_unsupported(dtype, op)
    ufunc = _UFUNCS[op]
    if dtype.kind in "bui":
        return _exact(ufunc)
    if ufunc is np.add and dtype.name == "float16":
        return _WidenedSum(_Float16(), ufunc)
    if ufunc is np.add and _is_bfloat16(dtype):
        return _WidenedSum(_Bfloat16(), ufunc)
    return _rounding(ufunc)


def finish(op: Op, ranks: int) -> Finish | None:
    """What is left to do with the result of combining ``ranks`` operands; None: nothing."""
    if op is Op.AVERAGE:
        return lambda result: _divide(result, ranks)
    if op in _LOGICAL and ranks == 1:
        return lambda result: np.copyto(result, result != 0, casting="unsafe")
    return None


@np.errstate(all="ignore")
def _divide(result: Array, ranks: int) -> None:
    # The number of ranks is no float16 or bfloat16 if there are many.
    np.divide(result, np.float32(ranks), out=result, casting="unsafe")


def _is_bfloat16(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__name__ == "bfloat16" and dtype.itemsize == 2


def _exact(ufunc: np.ufunc) -> Reducer:
    """Integers and bools: order does not matter, nothing can be invalid."""

    def reduce(destination: Array, received: Array, received_first: bool, own: Array | None = None) -> None:
        ufunc(destination if own is None else own, received, out=destination)

    return reduce


def _rounding(ufunc: np.ufunc) -> Reducer:
    """Floats: order matters, and overflow or NaN is the caller's data, no reason for a warning or, under a caller's
    ``np.seterr``, for an exception in the middle of a collective."""

    quiet = _Quiet()

    def reduce(destination: Array, received: Array, received_first: bool, own: Array | None = None) -> None:
        own = destination if own is None else own
        left, right = (received, own) if received_first else (own, received)
        if destination.size == 1:
            # With ``out`` numpy takes the operands of a single element the other way round: of two NaNs another wins.
            destination[:] = quiet.run(ufunc, left, right)
        else:
            quiet.run(ufunc, left, right, out=destination)

    return reduce


class _Quiet(threading.local):
    """Each thread's way to call numpy without a word about overflow and NaN. To enter a context in which that is said
    once costs a tenth of saying it each time (1.5 us); before numpy 2 contexts did not hold it."""

    def __init__(self) -> None:
        self.run: Callable[..., Any] = _under_errstate
        if int(np.__version__.split(".", 1)[0]) >= 2:
            context = contextvars.Context()
            context.run(np.seterr, all="ignore")
            self.run = context.run


@np.errstate(all="ignore")
def _under_errstate(function: Callable[..., Any], *operands: Array, out: Array | None = None) -> Any:
    return function(*operands, out=out)


class _Format(Protocol):
    """How one kind of 16-bit float becomes a float32 and back, as 32-bit words worked on in place.

    Both directions say False when the piece holds something that only the ufunc treats right; the words are spoiled.
    """

    #: Below this many elements calling numpy a dozen times costs more than it saves.
    elements_min: int

    def widen(self, words: _Words) -> bool:
        """From 16 bits, sign-extended, to the bits of a float32."""

    def narrow(self, words: _Words, scratch: _Words) -> bool:
        """From the bits of a float32 to the nearest 16 bits, ties to even, in the lower half of each word.

        ``scratch`` is twice as long as ``words``.
        """


class _WidenedSum:
    """Sums of 16-bit floats by way of float32, with the ufunc's bits.

    The ufuncs convert, add and round one element at a time. A float32 has more than twice the digits and two, so
    rounding a sum to it first and then to 16 bits gives the correctly rounded sum; numpy's float16 and ml_dtypes rely
    on the same. Here each step is taken for a whole piece, by operations that fill vector registers. NaN and what else
    needs more than that is left to the ufunc, a piece at a time.

    On one core of an AMD EPYC with AVX-512, chunks of 256 KiB: float16 at 1.55 instead of 0.57 GB/s (subnormals
    1.7 instead of 0.19), bfloat16 at 2.9 to 3.2 instead of 1.9; at 16 KiB 0.83 and 1.65, so bfloat16 begins at 32.
    """

    #: Three float32 rows of this length are 384 KiB: they stay in a second-level cache of 1 MiB beside the operands.
    PIECE_ELEMENTS = 1 << 15

    __slots__ = ("_format", "_plain", "_scratch")

    def __init__(self, number_format: _Format, ufunc: np.ufunc) -> None:
        self._format = number_format
        self._plain = _rounding(ufunc)
        #: Made when a piece is first long enough.
        self._scratch: _Words | None = None

    def __call__(self, destination: Array, received: Array, received_first: bool, own: Array | None = None) -> None:
        if own is not None:
            np.copyto(destination, own)
        start = 0
        while (rest := destination.size - start) >= self._format.elements_min:
            piece = slice(start, start + min(rest, self.PIECE_ELEMENTS))
            if not self._add(destination[piece].view(np.int16), received[piece].view(np.int16)):
                self._plain(destination[piece], received[piece], received_first)
            start = piece.stop
        if rest:
            self._plain(destination[start:], received[start:], received_first)

    @np.errstate(all="ignore")
    def _add(self, destination: npt.NDArray[np.int16], received: npt.NDArray[np.int16]) -> bool:
        """Returns False, with ``destination`` as it was, when the piece is one for the ufunc.

        Which operand is the left one matters to sums of NaN only, and those are not made here.
        """
        if self._scratch is None:
            self._scratch = np.empty(3 * self.PIECE_ELEMENTS, np.int32)
        size = destination.size
        words, scratch = self._scratch[: 2 * size], self._scratch[size : 3 * size]
        total, other = words[:size], words[size:]
        np.copyto(total, destination)
        np.copyto(other, received)
        if not self._format.widen(words):
            return False
        np.add(total.view(np.float32), other.view(np.float32), total.view(np.float32))
        if not self._format.narrow(total, scratch):  # the other operand is no longer needed
            return False
        np.copyto(destination, total, casting="unsafe")
        return True


class _Bfloat16:
    """bfloat16 is the upper half of a float32."""

    elements_min = 1 << 14

    def widen(self, words: _Words) -> bool:
        np.left_shift(words, _16, words)
        return True

    def narrow(self, words: _Words, scratch: _Words) -> bool:
        largest = np.maximum.reduce(words.view(np.float32))
        if largest != largest:  # NaN wins every maximum
            return False
        _round_to_even(words, scratch[: words.size], _16, _BELOW_HALF_OF_16)
        return True


class _Float16:
    """float16 has a shorter exponent: its bits, moved to a float32's places, mean the value times 2**-112.

    That holds for subnormals too, which become float32 subnormals and are multiplied back to size; so a thread that
    flushes those to zero gets the ufunc. Infinity and NaN would become ordinary numbers from 2**16 on: ufunc, too.
    """

    elements_min = 1 << 13

    def widen(self, words: _Words) -> bool:
        np.left_shift(words, _13, words)
        np.bitwise_and(words, _SIGN_AND_FLOAT16, words)
        floats = words.view(np.float32)
        np.multiply(floats, _TO_SIZE, floats)
        flushed = _SUBNORMAL * _TO_SIZE == 0
        return not flushed and _all_below(floats, 65536.0)

    def narrow(self, words: _Words, scratch: _Words) -> bool:
        floats = words.view(np.float32)
        if not _all_below(floats, 65520.0):  # what is not would round to infinity
            return False
        scratch, sign = scratch[: words.size], scratch[words.size :]
        np.right_shift(words, _16, sign)
        np.bitwise_and(sign, _SIGN_OF_16, sign)
        np.multiply(floats, _FROM_SIZE, floats)
        _round_to_even(words, scratch, _13, _BELOW_HALF_OF_13)
        np.bitwise_or(words, sign, words)
        return True


def _all_below(floats: npt.NDArray[np.float32], limit: float) -> bool:
    """Whether all magnitudes are below ``limit``; of NaN the answer is no."""
    return bool(np.maximum.reduce(floats) < limit and np.minimum.reduce(floats) > -limit)


def _round_to_even(words: _Words, scratch: _Words, shift: _Constant, below_half: _Constant) -> None:
    """Drop the lowest ``shift`` bits of each word, rounding to the nearest, ties to even."""
    np.right_shift(words, shift, scratch)
    np.bitwise_and(scratch, _1, scratch)
    np.add(scratch, below_half, scratch)
    np.add(words, scratch, words)
    np.right_shift(words, shift, words)
