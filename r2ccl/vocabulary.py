"""Words that calls understand besides numbers and arrays."""

from __future__ import annotations

from typing import Final

#: ``recv(x, source=ANY)``: whoever sends first.
ANY: Final = -1
#: Tags fit a header's field.
TAG_MAX: Final = (1 << 31) - 1
