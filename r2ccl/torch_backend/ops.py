"""torch's reductions, by the names that the core has for them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import torch.distributed

from r2ccl.errors import UsageError
from r2ccl.reduction import Op

#: By the names of torch's ReduceOp.
OPS: Final = MappingProxyType(
    {
        "SUM": Op.SUM,
        "AVG": Op.AVERAGE,
        "PRODUCT": Op.PRODUCT,
        "MIN": Op.MIN,
        "MAX": Op.MAX,
        "BAND": Op.BITWISE_AND,
        "BOR": Op.BITWISE_OR,
        "BXOR": Op.BITWISE_XOR,
    }
)


def op_of(opts: Any, name: str) -> Op:
    """torch's reduction, which stands alone or in the options."""
    given = torch.distributed.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    word = getattr(getattr(given, "op", given), "name", str(given))
    if word not in OPS:
        way_out = ": multiply the tensor before, and use SUM" if word == "PREMUL_SUM" else ""
        raise UsageError(f"{name}: ReduceOp.{word} is not supported; supported are {', '.join(OPS)}{way_out}")
    return OPS[word]
