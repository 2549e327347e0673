"""An optimizer whose step uses the gradients of all ranks: an all-reduce of each bucket, begun in the backward pass.

:func:`DistributedOptimizer` makes a subclass of the optimizer's own class, so whatever asks for that finds it, and
shares its state. When gradients may go out is decided by :mod:`r2ccl.protocol.gradient_buckets`; here they are put
together, sent, and put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from r2ccl.errors import UsageError
from r2ccl.protocol.gradient_buckets import Gradient, GradientBuckets
from r2ccl.torch_backend.horovod.calls import Average, Handle, ReduceOp, Sum, allreduce_async_
from r2ccl.torch_backend.horovod.compression import Compression, Compressor
from r2ccl.torch_backend.horovod.job import size

#: As DDP's.
BUCKET_BYTES = 25 << 20


class Reducer:
    """The gradients of one optimizer, and those of its buckets that are under way."""

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor]],
        buckets: GradientBuckets,
        compression: type[Compressor],
        factors: tuple[float, float],
        sparse_as_dense: bool,
    ) -> None:
        self.buckets = buckets
        self._named = named
        self._compression = compression
        #: What gradients are multiplied by before they are sent, and the sum after.
        self._before, self._after = factors
        self._sparse_as_dense = sparse_as_dense
        self._under_way: list[tuple[int, Tensor, Any, Handle]] = []
        for number, (_, parameter) in enumerate(named):
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            for bucket in self.buckets.ready(number):
                self._start(bucket)

        return ready

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def _start(self, bucket: int) -> None:
        flat = torch.cat([self._gradient(number).reshape(-1) for number in self.buckets.buckets[bucket]])
        if self._before != 1.0:
            flat.mul_(self._before)
        sent, context = self._compression.compress(flat)
        self._under_way.append((bucket, sent, context, allreduce_async_(sent, op=Sum)))

    def _gradient(self, number: int) -> Tensor:
        """This rank's part; zeros of what no backward pass reached."""
        name, parameter = self._named[number]
        if parameter.grad is None:
            return torch.zeros_like(parameter)
        if parameter.grad.layout is not torch.strided:
            if not self._sparse_as_dense:
                raise UsageError(f"the gradient of {name} is sparse: pass sparse_as_dense=True")
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def finish(self) -> None:
        """Reduce what is left, wait for all, and put the results into the gradients."""
        for bucket in self.buckets.end():
            self._start(bucket)
        under_way, self._under_way = self._under_way, []
        for bucket, sent, context, handle in under_way:
            handle.synchronize()
            flat = self._compression.decompress(sent, context)
            if self._after != 1.0:
                flat = flat * self._after
            self._put_back(self.buckets.buckets[bucket], flat)

    def _put_back(self, numbers: Sequence[int], flat: Tensor) -> None:
        parameters = [self._named[number][1] for number in numbers]
        for parameter, values in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
            if not parameter.requires_grad:
                continue  # frozen since
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(values.view(parameter.shape))


class Distributed:
    """What :func:`DistributedOptimizer` puts before the optimizer's own class."""

    _reducer: Reducer
    _is_reduced: bool
    _skips: bool

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients of all ranks, then step. A ``closure`` is followed by :meth:`synchronize` each time
        that the optimizer calls it."""
        own: Any = super()
        if closure is not None:

            def reduced() -> Any:
                loss = closure()
                self.synchronize()
                self._is_reduced = False
                return loss

            return own.step(reduced)
        if self._is_reduced and not self._reducer.buckets.is_idle:
            raise UsageError("backward() came between synchronize() and step(): its gradients would be this rank's own")
        if not self._is_reduced and not self._skips:
            self._reducer.finish()
        self._is_reduced = False
        return own.step()

    #: torch wraps the step of each class of optimizers, to call hooks. The optimizer's own class has been, so our step
    #: is not to be, or hooks would be called twice.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Wait for the gradients of all ranks, to look at or clip them before :meth:`step`, which then does not."""
        self._reducer.finish()
        self._is_reduced = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it :meth:`step` waits for nothing: the program has called :meth:`synchronize`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes come before each step, from now on."""
        self._reducer.buckets.set_passes(passes)

    def zero_grad(self, *arguments: Any, **options: Any) -> Any:
        """As the optimizer's; refused while gradients are under way."""
        if self._reducer.buckets.is_started:
            raise UsageError("zero_grad() between backward() and step(): gradients of this step are under way")
        own: Any = super()
        return own.zero_grad(*arguments, **options)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Refused: which gradients go together is settled."""
        del group
        raise UsageError("add parameters to the optimizer before DistributedOptimizer() wraps it")


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """``optimizer``, whose ``step()`` uses the average of all ranks' gradients, or their sum.

    The all-reduces begin in the backward pass, bucket by bucket. With ``backward_passes_per_step`` gradients of so many
    passes are added up first, and not divided. ``gradient_predivide_factor`` divides them by so much before they are
    sent and by the rest of the ranks' number after, which keeps sums small where ``compression`` is fp16.

    The optimizer that is passed shares its state with the one that is returned, and must not be used itself. A
    parameter that no rank's backward pass reached gets a gradient of zeros, which momentum and weight decay act on.
    """
    if op not in (Average, Sum):
        raise UsageError(f"DistributedOptimizer: op={op} is not supported: Average or Sum")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise UsageError("gradient_predivide_factor divides an average: op=Sum has none")
    if isinstance(optimizer, Distributed):
        raise UsageError("the optimizer is distributed already")
    if "step" in optimizer.__dict__:
        raise UsageError(
            "something has replaced the optimizer's step(), which would then not wait for the others' gradients: make "
            "learning-rate schedulers after DistributedOptimizer(), of what it returns"
        )
    named = _named(optimizer, named_parameters)
    gradients = [Gradient(name, str(one.dtype), one.nbytes) for name, one in named]
    buckets = GradientBuckets(gradients, bucket_bytes, backward_passes_per_step)
    factors = (1.0, 1.0)
    if op is Average:
        factors = (1.0 / gradient_predivide_factor, gradient_predivide_factor / size())
    kind: Any = type(optimizer.__class__.__name__, (Distributed, optimizer.__class__), {})
    made = kind.__new__(kind)
    made.__dict__ = optimizer.__dict__
    made._reducer = Reducer(named, buckets, compression, factors, sparse_as_dense)
    made._is_reduced = made._skips = False
    return made


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> list[tuple[str, Tensor]]:
    """The parameters that are trained, in the optimizer's order, which all ranks share."""
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    if named_parameters is None:
        return [(f"parameter {number}", one) for number, one in enumerate(trained)]
    pairs: list[Any] = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise UsageError("named_parameters: pass model.named_parameters(), which has names, not parameters()")
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"named_parameters: {', '.join(twice)} stand(s) there twice")
    name_of = {id(one): name for name, one in pairs}
    if nameless := sum(id(one) not in name_of for one in trained):
        raise UsageError(f"named_parameters: {nameless} of the optimizer's parameters are not among them")
    return [(name_of[id(one)], one) for one in trained]
