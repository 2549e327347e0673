"""What ranks call in a scenario, as data: one collective, a batch, an exchange of messages, or a split."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from r2ccl.reduction import Op

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool", "complex64")


class Kind(enum.Enum):
    """Calls of a communicator. ``MESSAGES`` is a round of sends and receives, issued together."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    ALL_GATHER_INTO = "all_gather_into"
    REDUCE_SCATTER = "reduce_scatter"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    BROADCAST_OBJECT = "broadcast_object"
    BATCH = "batch"
    MESSAGES = "messages"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Message:
    """One send and one receive. Ranks are those of the communicator."""

    source: int
    target: int
    tag: int
    dtype: str
    count: int
    #: The receive takes whoever is first.
    from_any: bool = False

    def __str__(self) -> str:
        any_or = "any" if self.from_any else self.source
        return f"{self.source}->{self.target} by {any_or} tag {self.tag} {self.dtype}[{self.count}]"


@dataclass(frozen=True, slots=True)
class Call:
    """One call, the same on all ranks. ``exact``: its payload is integers whose partial results are exact."""

    kind: Kind
    dtype: str = "uint8"
    op: Op | None = None
    #: Elements of ``x``, where all ranks' are alike; of all parts together, where it is cut into parts; of a block.
    count: int = 0
    root: int = 0
    exact: bool = True
    #: Lengths of all ranks' parts, passed as a list of arrays; (): one array, cut evenly.
    parts: tuple[int, ...] = ()
    #: By source and target; (): all have ``count``.
    blocks: tuple[tuple[int, ...], ...] = ()
    #: A rank's own part lies within the whole.
    in_place: bool = False
    #: Of a batch.
    calls: tuple[Call, ...] = ()
    messages: tuple[Message, ...] = ()
    #: By rank: in which order it issues its side of messages: (index, is it the receive).
    orders: tuple[tuple[tuple[int, bool], ...], ...] = ()
    #: Of a split: by rank its color and key, and (color, number of the communicator that it makes).
    colors: tuple[int | None, ...] = ()
    keys: tuple[int, ...] = ()
    makes: tuple[tuple[int, int], ...] = ()
    #: None: as long as it takes.
    timeout_s: float | None = None

    def __str__(self) -> str:
        return self._words() + ("" if self.timeout_s is None else f" within {self.timeout_s:g} s")

    def _words(self) -> str:
        if self.kind is Kind.BATCH:
            return f"batch({', '.join(map(str, self.calls))})"
        if self.kind is Kind.MESSAGES:
            return f"messages({', '.join(map(str, self.messages))})"
        if self.kind is Kind.SPLIT:
            return f"split(colors={list(self.colors)}, keys={list(self.keys)})"
        words = [f"{self.dtype}[{self.count}]", f"root={self.root}" if self.op is None else self.op.value]
        words += [f"parts={list(self.parts)}"] * bool(self.parts) + [f"blocks={self.blocks}"] * bool(self.blocks)
        return f"{self.kind.value}({', '.join(words + ['in place'] * self.in_place)})"


def item_bytes(dtype: str) -> int:
    """Of one of :data:`DTYPES`."""
    return {"bool": 1}.get(dtype) or int("".join(filter(str.isdigit, dtype))) // 8


def even_parts(count: int, ranks: int) -> tuple[int, ...]:
    """How one array is cut into parts: lengths differ by at most one, the longer ones first."""
    short, longer = divmod(count, ranks)
    return (short + 1,) * longer + (short,) * (ranks - longer)


def parts_of(call: Call, ranks: int) -> tuple[int, ...]:
    """The lengths of all ranks' parts."""
    return call.parts or even_parts(call.count, ranks)


def blocks_of(call: Call, ranks: int) -> tuple[tuple[int, ...], ...]:
    """All-to-all: elements by source and target."""
    return call.blocks or ((call.count,) * ranks,) * ranks


def moved_elements(call: Call, ranks: int) -> int:
    """About how many elements a rank sends or receives: what a call costs."""
    match call.kind:
        case Kind.ALL_GATHER | Kind.GATHER | Kind.SCATTER:
            return call.count * ranks
        case Kind.ALL_GATHER_INTO | Kind.REDUCE_SCATTER:
            return sum(parts_of(call, ranks))
        case Kind.ALL_TO_ALL:
            return max(map(sum, blocks_of(call, ranks)))
        case Kind.BATCH:
            return sum(inner.count for inner in call.calls)
        case Kind.MESSAGES:
            return sum(message.count for message in call.messages)
        case _:
            return call.count
