"""The rules of the house as functions from a module to complaints; test_architecture.py applies and proves them.

A module is (dotted name, parsed source). Every complaint says the rule and where the code belongs instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FLOOR_TOP: Final = (
    "tuning", "topology", "buffers", "reduction", "config", "clock",
    "telemetry.counters", "telemetry.event_log", "telemetry.log_output", "telemetry.strangers",
)  # fmt: skip
NAMES: Final = ("ids", "errors", "vocabulary", "checks", "_version")
FLOOR: Final = (*NAMES, *FLOOR_TOP)
DECIDING: Final = ("schedule", "planner", "protocol")
MACHINERY: Final = (*FLOOR, *DECIDING, "rendezvous", "transport", "actors")
SURFACE: Final = ("calls", "batch", "objects", "progress", "handle", "communicator")
PRODUCTION: Final = (*MACHINERY, *SURFACE, "fault_control", "figures", "doors", "bootstrap", "blocking")

#: What each room may import of r2ccl, besides itself. The most specific name wins; arrows go down only.
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    # names: the standard library only
    "ids": (),
    "errors": (),
    "vocabulary": (),
    "checks": (),
    "_version": (),
    # the floor
    "tuning": NAMES,
    "topology": (*NAMES, "tuning"),
    "buffers": NAMES,
    "reduction": (*NAMES, "buffers"),
    "config": NAMES,
    "clock": NAMES,
    "telemetry.counters": (*NAMES, "clock"),
    "telemetry.event_log": (*NAMES, "clock"),
    "telemetry.log_output": NAMES,
    "telemetry.strangers": (*NAMES, "telemetry.event_log"),
    # collectives as data
    "schedule": FLOOR,
    # never sideways
    "planner": (*FLOOR, "schedule"),
    "protocol": (*FLOOR, "schedule"),
    "transport": (*FLOOR, "protocol.wire", "protocol.handshake", "protocol.doorkeeper"),
    "rendezvous": (*FLOOR, "protocol.wire", "protocol.handshake", "protocol.doorkeeper"),
    # thin shells
    "actors": (*FLOOR, *DECIDING, "transport.interface"),
    # composition roots, and the public names
    "calls": MACHINERY,
    "batch": (*MACHINERY, "calls"),
    "objects": (*MACHINERY, "calls"),
    "progress": NAMES,
    "handle": (*MACHINERY, "calls", "progress"),
    "communicator": (*MACHINERY, *SURFACE),
    "fault_control": MACHINERY,
    "figures": MACHINERY,
    "doors": MACHINERY,
    "bootstrap": (*MACHINERY, *SURFACE, "fault_control", "figures", "doors"),
    "blocking": (*MACHINERY, *SURFACE, "bootstrap"),
    "": PRODUCTION,
    "lab": (*PRODUCTION, ""),
    "sim": PRODUCTION,
    # entry rooms: in nobody's list
    "telemetry": (*PRODUCTION, ""),
    "torch_backend": (*PRODUCTION, ""),
    # the public door of a part of torch_backend: names, and nothing else
    "horovod_style": ("torch_backend.horovod",),
    "cli": (*PRODUCTION, "", "lab", "sim", "telemetry"),
}  # fmt: skip

PURE_ROOMS: Final = DECIDING
IMPURE_MODULES: Final = frozenset(
    ("asyncio", "uvloop", "time", "datetime", "random", "secrets", "socket", "threading", "logging", "os")
)
#: Actors that know one another only by messages; whoever names them all wires them up.
#: They put concrete parts together.
COMPOSITION_ROOTS: Final = (
    "communicator",
    "handle",
    "actors.communicators",
    "doors",
    "bootstrap",
    "sim.world",
    "sim.checkers",
)
CONCRETE_ACTORS: Final = frozenset(("transport_actor", "health_monitor", "profiler", "coordinator"))
MUTABLE_CALLS: Final = frozenset(
    ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "ChainMap", "bytearray", "count")
)
MUTABLE_DISPLAYS: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
FUNCTION_LINES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Module:
    """A module of r2ccl: its dotted name below the package (``""`` is r2ccl itself) and its source."""

    name: str
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, source: str) -> Module:
        return cls(name, ast.parse(source))

    def is_in(self, *rooms: str) -> bool:
        return any(self.name == room or self.name.startswith(room + ".") for room in rooms)


def room_of(name: str) -> str | None:
    """The most specific room that a dotted name belongs to, or None."""
    parts = name.split(".") if name else []
    for length in range(len(parts), 0, -1):
        if (room := ".".join(parts[:length])) in ROOMS:
            return room
    return None if parts else ""


def imports(tree: ast.AST, of_types_too: bool = True) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that is imported; what is under ``if TYPE_CHECKING`` only with ``of_types_too``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not of_types_too:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
            else:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        else:
            yield from imports(node, of_types_too)


def arrows_go_down(module: Module) -> Iterator[str]:
    """The import rule."""
    own = room_of(module.name)
    if own is None:
        yield f"r2ccl.{module.name} is in no room: move it into one, or give it a row in ROOMS with what it may import"
        return
    for line, name in imports(module.tree):
        if name.startswith("."):
            yield f"line {line}: relative import: write the full name, so that its room can be seen"
        if not (name == "r2ccl" or name.startswith("r2ccl.")):
            continue
        target = name.removeprefix("r2ccl").removeprefix(".")
        # `from r2ccl import connect` names something of the package itself; `from r2ccl import ids` names a room.
        room = room_of(target) or ""
        allowed = (own, *ROOMS[own])
        if not any(target == a or (a and target.startswith(a + ".")) or (a == room == "") for a in allowed):
            yield (
                f"line {line}: {own or 'r2ccl'} may not import {name}: arrows go down only. Move what both need to "
                f"{'ids or errors' if own in FLOOR else 'protocol.wire, transport.interface or the floor'}, or have "
                "the room above bring them together"
            )


def pure_rooms_stay_pure(module: Module) -> Iterator[str]:
    """No coroutine, clock, chance, socket, thread or log where decisions are made. Types alone may be named."""
    if not module.is_in(*PURE_ROOMS):
        return
    for line, name in imports(module.tree, of_types_too=False):
        if name.split(".")[0] in IMPURE_MODULES:
            yield f"line {line}: {name} in a pure room: take `now` or an `rng` as argument, or act in actors/"
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)):
            yield f"line {node.lineno}: coroutine in a pure room: return an effect, and await in actors/"


def time_and_environment_have_one_owner(module: Module) -> Iterator[str]:
    """Only clock.py reads time, only config.py the environment; lab and cli may time what they do to the machine."""
    for line, name in imports(module.tree):
        if name.split(".")[0] == "time" and not module.is_in("clock", "lab", "cli"):
            yield f"line {line}: only clock.py reads time: take `now` or a Clock as argument"
        if name in ("os.environ", "os.getenv", "os.putenv") and module.name != "config":
            yield f"line {line}: only config.py reads the environment: take a Settings, or config.environment()"
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node.attr in ("environ", "getenv", "putenv")
            and module.name != "config"
        ):
            yield f"line {node.lineno}: only config.py reads the environment: take a Settings, or config.environment()"


def only_the_runtime_names_all_actors(module: Module) -> Iterator[str]:
    """Actors know one another by their messages; who puts them together knows them."""
    if module.name in ("actors.runtime", *COMPOSITION_ROOTS):
        return
    for line, name in imports(module.tree):
        for actor in sorted(CONCRETE_ACTORS):
            path = f"r2ccl.actors.{actor}"
            if (name == path or name.startswith(path + ".")) and module.name != f"actors.{actor}":
                yield (
                    f"line {line}: only actors/runtime.py names all actors: move the message to actors/messages.py, "
                    "or wire it in actors/runtime.py"
                )


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in MUTABLE_CALLS
    return isinstance(value, MUTABLE_DISPLAYS)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import, also those within if, try, with and loops; not those of functions."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(statement, field, []):
                    yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def no_module_level_mutable_state(module: Module) -> Iterator[str]:
    """Two worlds in one process must not share anything that changes."""
    for node in _statements(module.tree.body):
        if isinstance(node, ast.Assign):
            targets, annotation = [ast.unparse(target) for target in node.targets], ""
        elif isinstance(node, ast.AnnAssign):
            targets, annotation = [ast.unparse(node.target)], ast.unparse(node.annotation)
        else:
            continue
        constant = "Final" in annotation or "MappingProxyType" in annotation or targets == ["__all__"]
        if _is_mutable(node.value) and not constant:
            yield (
                f"line {node.lineno}: {', '.join(targets)} is module-level mutable state: a tuple, frozenset or "
                "Final table if it is a constant, else a field of whoever owns it"
            )
    for inner in ast.walk(module.tree):
        if isinstance(inner, ast.Global):
            yield f"line {inner.lineno}: `global`: give {', '.join(inner.names)} to an object that is passed"


def functions_are_short(module: Module) -> Iterator[str]:
    """Up to 50 lines, docstring not counted."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            spared = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
            lines = (node.end_lineno or 0) - node.lineno + 1 - spared
            if lines > FUNCTION_LINES_MAX:
                yield (
                    f"line {node.lineno}: {node.name} has {lines} lines, limit {FUNCTION_LINES_MAX}: let it branch and "
                    "move what the branches compute into functions of their own"
                )


def every_module_says_what_it_decides(module: Module) -> Iterator[str]:
    """A docstring, unless the file is empty."""
    if module.tree.body and not ast.get_docstring(module.tree):
        yield "line 1: no docstring: say what this file decides, and what it leaves to others"
