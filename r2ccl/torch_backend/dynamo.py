"""Our Python is not to be compiled.

While a program that was compiled by torch runs, TorchDynamo looks at every Python function that is called, also by C++:
DDP's reducer calls ours. Tracing them finds a process group, which it takes for opaque, and ends in an internal error.
``torch.compiler.disable`` would say what is wanted, but imports TorchDynamo, which takes a second that a program which
compiles nothing has no use for. So the same is said where TorchDynamo itself keeps it, by the code of each function.
"""

from __future__ import annotations

import types
from typing import Any, TypeVar

import torch

C = TypeVar("C", bound=type)


def not_compiled(kind: C) -> C:
    """A class decorator: run its methods as they are, and all that they call."""
    for attribute in vars(kind).values():
        for function in (attribute, getattr(attribute, "fget", None)):
            if isinstance(function, types.FunctionType):
                _skip(function.__code__)
    return kind


def _skip(code: types.CodeType) -> None:
    hooks: Any = torch._C._dynamo.eval_frame
    skip = hooks._FrameAction.SKIP
    hooks.set_code_exec_strategy(code, hooks._FrameExecStrategy(skip, skip))
