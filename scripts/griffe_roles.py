"""Docstrings name things with the roles of Sphinx, such as :class:`~r2ccl.errors.PeerLost`; the site is markdown.

An extension of griffe, which reads the docstrings for docs/api.md: a role becomes a link where the thing it names is on
that page, and code where it is not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import griffe

ROOT: Final = Path(__file__).parent.parent
_ROLE: Final = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(~?)([\w.]+)`")
_SHOWN: Final = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def shown() -> frozenset[str]:
    """What docs/api.md documents."""
    return frozenset(_SHOWN.findall((ROOT / "docs/api.md").read_text(encoding="utf-8")))


def public_names() -> Mapping[str, str]:
    """Where the public names come from: ``r2ccl.Work`` is ``r2ccl.actors.work.Work``."""
    tree = ast.parse((ROOT / "r2ccl/__init__.py").read_text(encoding="utf-8"))
    return {
        f"r2ccl.{alias.name}": f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def as_markdown(docstring: str, place: str, linked: frozenset[str], public: Mapping[str, str]) -> str:
    """A docstring of what is at ``place``, a dotted name, with links instead of roles."""

    def link(role: re.Match[str]) -> str:
        short, name = role[1], role[2]
        words = name.rpartition(".")[2] if short else name
        found = next((one for one in _meant(name, place, public) if one in linked), None)
        return f"`{words}`" if found is None else f"[`{words}`][{found}]"

    return _ROLE.sub(link, docstring)


def _meant(name: str, place: str, public: Mapping[str, str]) -> Iterator[str]:
    """What a name may stand for: it is looked for as Python would, from inside out."""
    around = place.split(".")
    for candidate in (name, *(".".join([*around[:length], name]) for length in range(len(around), 0, -1))):
        owner, dot, member = candidate.rpartition(".")
        yield public.get(candidate, candidate)
        yield f"{public.get(owner, owner)}{dot}{member}"


class Roles(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """The extension."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """All was read."""
        public = public_names()
        linked: set[str] = set()
        for name in shown():
            linked |= {name, *(f"{name}.{member}" for member in pkg.modules_collection[name].all_members)}
        for one in _everything(pkg):
            if one.docstring is not None:
                one.docstring.value = as_markdown(one.docstring.value, one.path, frozenset(linked), public)


def _everything(above: Any) -> Iterator[Any]:
    yield above
    for member in above.members.values():
        if not member.is_alias:
            yield from _everything(member)
