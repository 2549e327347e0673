"""How much a rank keeps, by what keeps it: the entries of every collection that the runtime's objects hold.

What leaks in Python is nearly always an entry that nobody takes out of a set, dict or list. Memory tells of it late and
without a name; counting entries tells of the first hundred, and says which attribute of which class has them. So the
objects of this package are walked, from a root, through attributes and collections, and the lengths are added up under
``Class.attribute``. Nothing has to be registered, so nothing can be forgotten.

A deque with ``maxlen`` is left out with all that is in it: it is bounded by what it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_PACKAGE: Final = "r2ccl."
#: The simulated loop and its world are no part of what is measured.
_OBSERVERS: Final = "r2ccl.sim."
#: Walked no further than this; a runtime has some thousands.
OBJECTS_MAX: Final = 1_000_000


def census(roots: Iterable[object]) -> Counter[str]:
    """Entries by ``Class.attribute``, of all that these objects lead to."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, object]] = [("roots", root) for root in roots]
    while todo and len(seen) < OBJECTS_MAX:
        name, thing = todo.pop()
        if id(thing) in seen:
            continue
        if isinstance(thing, (dict, list, tuple, set, frozenset, deque, Mapping)):
            seen.add(id(thing))
            if isinstance(thing, deque) and thing.maxlen is not None:
                continue
            if not isinstance(thing, tuple):
                found[name] += len(thing)
            todo += ((name, entry) for entry in _entries(thing) if _is_walked(entry))
        elif type(thing).__module__.startswith(_PACKAGE) and not type(thing).__module__.startswith(_OBSERVERS):
            seen.add(id(thing))
            kind = type(thing).__qualname__
            todo += ((f"{kind}.{attribute}", value) for attribute, value in _attributes(thing) if _is_walked(value))
    return found


def _is_walked(thing: object) -> bool:
    """Not what leads nowhere; most things are numbers, strings and functions."""
    return thing is not None and not isinstance(thing, (int, float, str, bytes, bytearray, memoryview, type))


def _entries(collection: Any) -> list[object]:
    if isinstance(collection, Mapping):
        return [*collection.keys(), *collection.values()]
    return list(collection)


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            value = getattr(thing, name, None)
            if value is not None:
                yield slot, value
