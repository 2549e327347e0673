"""What all ranks must begin with: parameters, the optimizer's state, and small objects, as one rank has them.

The state of an optimizer is there on the rank that read a checkpoint, and perhaps nowhere else. So the others first
hear what it looks like, with a mark in the place of each tensor, and then the tensors. Objects are pickled by torch: a
rank runs what the root sent, as with every object collective of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from r2ccl.errors import UsageError
from r2ccl.torch_backend.horovod.job import size

#: Tensors go together in pieces of this size: a large one by itself.
PIECE_BYTES = 25 << 20


@dataclass(frozen=True, slots=True)
class TensorMark:
    """In the place of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_parameters(parameters: Any, root_rank: int) -> None:
    """Give all ranks the parameters of one: ``model.state_dict()``, or ``model.named_parameters()``."""
    named = parameters.items() if isinstance(parameters, Mapping) else parameters
    if not isinstance(named, Iterable):
        raise UsageError(
            f"broadcast_parameters: {type(parameters).__name__} is neither a state_dict() nor named_parameters()"
        )
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise UsageError("broadcast_parameters: pass model.named_parameters(), which has names, not parameters()")
    broadcast_tensors([value.detach() for _, value in pairs if isinstance(value, Tensor)], root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Give all ranks the state of one rank's optimizer: moments, step counts, learning rates."""
    mine = optimizer.state_dict() if dist.get_rank() == root_rank and size() else None
    tensors: list[Tensor] = []
    marked = broadcast_object(None if mine is None else _marked(mine, tensors), root_rank)
    if mine is None:
        tensors = [torch.empty(mark.shape, dtype=mark.dtype) for mark in _marks(marked)]
    broadcast_tensors(tensors, root_rank)
    if mine is None:
        optimizer.load_state_dict(_filled(marked, iter(tensors)))


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """What ``root_rank`` passes, on all ranks; what others pass is of no account. It has to be picklable."""
    del name
    size()
    one = [obj]
    dist.broadcast_object_list(one, root_rank)
    return obj if dist.get_rank() == root_rank else one[0]


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """What each rank passes. It has to be picklable."""
    del name
    found = [None] * size()
    dist.all_gather_object(found, obj)
    return found


def broadcast_tensors(tensors: list[Tensor], root_rank: int) -> None:
    """Several tensors, in place; those of one dtype that follow one another go together."""
    size()
    for piece in _pieces(tensors):
        if len(piece) == 1:
            dist.broadcast(piece[0], root_rank)
            continue
        flat = torch.cat([one.reshape(-1) for one in piece])
        dist.broadcast(flat, root_rank)
        if dist.get_rank() != root_rank:
            for one, values in zip(piece, flat.split([one.numel() for one in piece]), strict=True):
                one.copy_(values.view(one.shape))


def _pieces(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    piece: list[Tensor] = []
    room = PIECE_BYTES
    for tensor in tensors:
        if piece and (tensor.dtype != piece[0].dtype or tensor.nbytes > room):
            yield piece
            piece, room = [], PIECE_BYTES
        piece.append(tensor)
        room -= tensor.nbytes
    if piece:
        yield piece


def _marked(tree: Any, tensors: list[Tensor]) -> Any:
    """``tree`` with marks for its tensors, which are added to ``tensors``."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return TensorMark(tuple(tree.shape), tree.dtype)
    if isinstance(tree, dict):
        return {key: _marked(value, tensors) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_marked(value, tensors) for value in tree)
    return tree


def _marks(tree: Any) -> Iterator[TensorMark]:
    """In the order of :func:`_marked`."""
    if isinstance(tree, TensorMark):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _marks(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _marks(value)


def _filled(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The reverse of :func:`_marked`."""
    if isinstance(tree, TensorMark):
        return next(tensors)
    if isinstance(tree, dict):
        return {key: _filled(value, tensors) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(value, tensors) for value in tree)
    return tree
