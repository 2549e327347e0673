"""What SLURM means by ``node[003-005,010],gpu1``: a list of hosts in short.

Names are separated by commas. Brackets hold numbers and ranges of them, also separated by commas, and a range keeps
the width of its first number: ``[003-005]`` is 003, 004, 005. A name may have several brackets, of which the last one
counts fastest (``rack[1-2]node[0-3]``), and may go on behind them (``node[1-2]-ib``).
"""

from __future__ import annotations

import itertools
import re

#: More than any machine has. A range without sense must not fill the memory.
HOSTS_MAX = 1 << 16

_NAME = r"[A-Za-z0-9._-]*"
_RANGES = r"\[[0-9,-]+\]"
_HOSTS = re.compile(rf"(?:{_NAME}{_RANGES})*{_NAME}(?=,|$)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(hostlist: str) -> tuple[str, ...]:
    """All hosts of the list, in its order. Raises ``ValueError`` with a sentence."""
    hosts: list[str] = []
    position = 0
    while position <= len(hostlist):
        found = _HOSTS.match(hostlist, position)
        if found is None or not found[0]:
            raise ValueError(f"{hostlist!r} is no list of hosts: it goes wrong behind {hostlist[:position]!r}")
        hosts.extend(_expand_one(found[0], HOSTS_MAX - len(hosts)))
        position = found.end() + 1
    return tuple(hosts)


def _expand_one(pattern: str, room: int) -> list[str]:
    pieces = [piece for piece in re.split(rf"({_RANGES})", pattern) if piece]
    choices = [_numbers(piece[1:-1], room) if piece.startswith("[") else [piece] for piece in pieces]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > room:
        raise ValueError(f"{pattern!r} and what goes before it are more than {HOSTS_MAX} hosts")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _numbers(ranges: str, room: int) -> list[str]:
    numbers: list[str] = []
    for text in ranges.split(","):
        found = _RANGE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} in [{ranges}] is neither a number nor a range")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{text!r} in [{ranges}] goes backwards")
        if last - first >= room - len(numbers):
            raise ValueError(f"[{ranges}] means more than {HOSTS_MAX} hosts")
        numbers.extend(str(number).zfill(len(found[1])) for number in range(first, last + 1))
    return numbers
