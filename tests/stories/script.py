"""A story file taken apart: its commands, sizes, times and options."""

from __future__ import annotations

import re
from dataclasses import dataclass

RULE = "----\n"
#: Of bytes written, and of time.
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "MB/s": 1_000_000, "s": 1.0, "ms": 1e-3, "us": 1e-6}


class BadStory(ValueError):
    """A line that is no command."""


def quantity(text: str) -> float:
    """``4MiB`` in bytes, ``50ms`` in seconds, ``100MB/s`` in bytes per second."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z/]+)", text)
    if match is None or match[2] not in UNITS:
        raise BadStory(f"{text!r} is no size, time or speed")
    return float(match[1]) * UNITS[match[2]]


@dataclass(slots=True)
class Story:
    """The parts of a story file."""

    head: str
    commands: list[str]
    transcript: str

    @staticmethod
    def parse(text: str) -> Story:
        head, _, transcript = text.partition(RULE)
        lines = [line.strip() for line in head.splitlines()]
        if not lines or not lines[0].startswith("#"):
            raise BadStory("a story begins with a comment that says what it shows and why")
        return Story(head, [line for line in lines if line and not line.startswith("#")], transcript)

    def text(self) -> str:
        return self.head + RULE + self.transcript


@dataclass(slots=True)
class Options:
    """What follows a call's name and size. Ranks are those of the job."""

    ranks: list[int]
    communicator: str = "A"
    root: int = 0
    #: Of a message; -1: from any.
    source: int = -1
    target: int = 0
    tag: int = 0
    timeout_s: float | None = None
    rewrite: bool = False


def parse_options(words: list[str], ranks: int) -> Options:
    """What a call's last words say, in a world of so many ranks."""
    found = Options(list(range(ranks)))
    while words:
        match words:
            case ["on", *rest]:
                count = next((i for i, word in enumerate(rest) if not word.isdigit()), len(rest))
                found.ranks, words = [int(word) for word in rest[:count]], rest[count:]
            case ["of", name, *words]:
                found.communicator = name
            case ["from", "any", *words]:
                found.source = -1
            case ["from", root, *words]:
                found.root = found.source = int(root)
            case ["to", target, *words]:
                found.target = int(target)
            case ["tag", tag, *words]:
                found.tag = int(tag)
            case ["timeout", limit, *words]:
                found.timeout_s = quantity(limit)
            case ["then", "rewrite", *words]:
                found.rewrite = True
            case _:
                raise BadStory(f"no option begins with {' '.join(words)}")
    return found
