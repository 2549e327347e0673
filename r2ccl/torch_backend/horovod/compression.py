"""What gradients look like on the wire."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Compressor:
    """Derive from it for a compression of your own. What ``compress`` makes is summed by the ranks as it is."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What goes out, and what :meth:`decompress` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        """What the caller gets of the sum."""
        del context
        return tensor


class HalvingCompressor(Compressor):
    """Floats travel, and are summed, in 16 bits. A sum beyond 65,504 becomes infinite: see
    ``gradient_predivide_factor``."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return (tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        return tensor.to(context)


class Compression:
    """The compressions there are, by name."""

    none = Compressor
    fp16 = HalvingCompressor
