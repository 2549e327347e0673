"""When the gradients of a training step may be reduced, and in which order: the same on every rank.

Gradients become ready one by one, in an order that depends on the graph, and graphs may differ between ranks; the
order of collectives may not. So parameters are put into buckets once, from the last to the first, which is about the
order in which a backward pass reaches them, and a bucket is reduced when it is full and all buckets before it were.

    event                       what follows
    a gradient is ready         the buckets that may now be reduced, in order: none, one, or several at once
    ... for the n-th time       counts only when it has been accumulated over as many backward passes as are asked for
    ... once more               refused: its bucket may be under way
    the step ends               all buckets that are left, in order; what no backward pass reached is in them, too

Knows no tensor: a parameter is a number, with a size and a kind (its dtype); only equal kinds share a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2ccl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Gradient:
    """What is to be known of one parameter."""

    name: str
    #: Those of equal kind may lie in one piece of memory.
    kind: str
    size_bytes: int


class GradientBuckets:
    """One optimizer's. ``passes``: over how many backward passes each gradient is accumulated before it is reduced."""

    def __init__(self, gradients: Sequence[Gradient], limit_bytes: int, passes: int = 1) -> None:
        if limit_bytes < 1:
            raise UsageError(f"a bucket of {limit_bytes} bytes holds nothing: at least 1")
        self._gradients = tuple(gradients)
        #: The numbers of the parameters in each bucket.
        self.buckets = _filled(self._gradients, limit_bytes)
        self._bucket_of = {number: bucket for bucket, numbers in enumerate(self.buckets) for number in numbers}
        self._passes = _checked(passes)
        self._begin()

    def _begin(self) -> None:
        self._counted = [0] * len(self._gradients)
        self._lacking = [len(numbers) for numbers in self.buckets]
        self._started = 0

    @property
    def passes(self) -> int:
        """Over how many backward passes each gradient is accumulated."""
        return self._passes

    @property
    def is_idle(self) -> bool:
        """No gradient has become ready since the last step."""
        return not any(self._counted)

    @property
    def is_started(self) -> bool:
        """A bucket of this step is under way."""
        return self._started > 0

    def set_passes(self, passes: int) -> None:
        """Raises :class:`~r2ccl.errors.UsageError` in the middle of a step."""
        if not self.is_idle:
            raise UsageError("backward_passes_per_step changes between steps, and gradients of this one are ready")
        self._passes = _checked(passes)

    def ready(self, number: int) -> range:
        """A backward pass has made a gradient. Returns the buckets that may be reduced now."""
        if self._counted[number] == self._passes:
            raise UsageError(
                f"the gradient of {self._gradients[number].name} was made more than {self._passes} time(s) before "
                "step(): call step() or synchronize() after each backward(), or say how many come before it with "
                "backward_passes_per_step"
            )
        self._counted[number] += 1
        if self._counted[number] == self._passes:
            self._lacking[self._bucket_of[number]] -= 1
        begin = self._started
        while self._started < len(self.buckets) and not self._lacking[self._started]:
            self._started += 1
        return range(begin, self._started)

    def end(self) -> range:
        """The step ends. Returns the buckets that are left to be reduced."""
        left = range(self._started, len(self.buckets))
        self._begin()
        return left


def _checked(passes: int) -> int:
    if passes < 1:
        raise UsageError(f"backward_passes_per_step={passes}: at least 1")
    return passes


def _filled(gradients: Sequence[Gradient], limit_bytes: int) -> tuple[tuple[int, ...], ...]:
    buckets: list[list[int]] = []
    room_bytes = 0
    kind = ""
    for number in reversed(range(len(gradients))):
        gradient = gradients[number]
        if not buckets or gradient.kind != kind or gradient.size_bytes > room_bytes:
            buckets.append([])
            room_bytes, kind = limit_bytes, gradient.kind
        buckets[-1].append(number)
        room_bytes -= gradient.size_bytes
    return tuple(map(tuple, buckets))
