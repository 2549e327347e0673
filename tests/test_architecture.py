"""Every file keeps the rules of the house (ARCHITECTURE.md), and every rule is shown to catch its sample."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import architecture_rules as rules
from tests.architecture_rules import Module

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "r2ccl"
FILE_LINES_QUESTIONED: Final = 400
FILE_LINES_MAX: Final = 600
#: Files of more than 400 lines that were questioned, and why they are one thing all the same.
LONGER_BECAUSE: Final[dict[str, str]] = {"r2ccl/config.py": "one table of all settings, a row each"}
#: Modules that no rank may load: they are slow to import, or belong to other rooms.
FORBIDDEN_IN_A_RANK: Final = (
    "pyroute2", "typer", "rich", "torch", "pydantic", "matplotlib", "pytest", "click", "hypothesis", "ml_dtypes",
    "r2ccl.sim", "r2ccl.lab", "r2ccl.cli", "r2ccl.torch_backend", "r2ccl.horovod_style",
)  # fmt: skip

Rule = Callable[[Module], Iterator[str]]
RULES: Final[tuple[Rule, ...]] = (
    rules.arrows_go_down,
    rules.pure_rooms_stay_pure,
    rules.time_and_environment_have_one_owner,
    rules.only_the_runtime_names_all_actors,
    rules.no_module_level_mutable_state,
    rules.functions_are_short,
    rules.every_module_says_what_it_decides,
)


def dotted_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_modules() -> list[Module]:
    return [Module.parse(dotted_name(path), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]


def length_complaints(lengths: dict[str, int], longer_because: dict[str, str]) -> list[str]:
    """What is to be said about files of these lengths."""
    complaints = []
    for path, lines in sorted(lengths.items()):
        if lines > FILE_LINES_MAX:
            complaints.append(f"{path}: {lines} lines, over {FILE_LINES_MAX}: one file per idea, split it")
        elif lines > FILE_LINES_QUESTIONED and path not in longer_because:
            complaints.append(
                f"{path}: {lines} lines, over {FILE_LINES_QUESTIONED}: split it, or say in LONGER_BECAUSE why not"
            )
    for path in sorted(longer_because):
        if lengths.get(path, 0) <= FILE_LINES_QUESTIONED:
            complaints.append(f"{path}: is in LONGER_BECAUSE and is not long: take it out")
    return complaints


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    modules = package_modules()
    assert len(modules) > 10
    complaints = [f"r2ccl.{module.name}, {complaint}" for module in modules for complaint in rule(module)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_no_file_is_too_long() -> None:
    files = [path for room in ("r2ccl", "tests", "examples") for path in (ROOT / room).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert lengths
    assert not length_complaints(lengths, LONGER_BECAUSE)


def test_importing_r2ccl_loads_nothing_that_a_rank_does_not_need() -> None:
    program = "import sys, r2ccl; r2ccl.connect; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "r2ccl.errors" in loaded
    forbidden = {name for name in loaded for root in FORBIDDEN_IN_A_RANK if name == root or name.startswith(root + ".")}
    assert not forbidden, (
        f"`import r2ccl` must stay cheap: import these in cli/ or lab/, or where they are used: {forbidden}"
    )


def test_the_room_table_names_only_rooms() -> None:
    for room, allowed in rules.ROOMS.items():
        for name in allowed:
            assert rules.room_of(name) is not None, f"{room} may import {name}, which is in no room"
            assert name not in ("cli", "torch_backend", "horovod_style"), (
                f"{room}: nobody imports the entry room {name}"
            )
            assert room == "horovod_style" or not name.startswith("torch_backend."), f"{room} is no door of it"
    importers_of_sim = {room for room, allowed in rules.ROOMS.items() if "sim" in allowed}
    assert importers_of_sim == {"cli"}, "production never imports sim"


VIOLATIONS: Final[tuple[tuple[Rule, str, str, str], ...]] = (
    (rules.arrows_go_down, "ids", "from r2ccl.errors import R2cclError", "ids may not import r2ccl.errors"),
    (rules.arrows_go_down, "schedule.ring", "from r2ccl.planner import cost", "arrows go down only"),
    (rules.arrows_go_down, "planner.cost", "import r2ccl.protocol.ledger", "arrows go down only"),
    (rules.arrows_go_down, "transport.tcp", "from r2ccl.protocol.ledger import Ledger", "protocol.wire"),
    (rules.arrows_go_down, "transport.tcp", "from r2ccl.protocol import ledger", "arrows go down only"),
    (rules.arrows_go_down, "rendezvous.store", "from r2ccl.transport.interface import Device", "rendezvous may not"),
    (rules.arrows_go_down, "actors.courier", "from r2ccl.transport.tcp import TcpDevice", "transport.interface"),
    (rules.arrows_go_down, "actors.courier", "from r2ccl.transport import tcp", "transport.interface"),
    (rules.arrows_go_down, "communicator", "from r2ccl.sim.loop import SimLoop", "communicator may not"),
    (rules.arrows_go_down, "", "from r2ccl.sim import loop", "r2ccl may not"),
    (rules.arrows_go_down, "protocol.health", "def f():\n    import r2ccl.actors.actor", "line 2: protocol may not"),
    (rules.arrows_go_down, "protocol.health", "from r2ccl import connect", "protocol may not"),
    (rules.arrows_go_down, "telemetry.counters", "from r2ccl.config import Settings", "telemetry.counters may not"),
    (rules.arrows_go_down, "lab.hosts", "from r2ccl.cli.main import app", "lab may not"),
    (rules.arrows_go_down, "protocol.health", "from .wire import Kind", "relative import"),
    (rules.arrows_go_down, "communicator", "from r2ccl import horovod_style", "communicator may not"),
    (rules.arrows_go_down, "horovod_style", "from r2ccl.torch_backend.group import Group", "horovod_style may not"),
    (rules.arrows_go_down, "helpers", "", "is in no room"),
    (rules.pure_rooms_stay_pure, "protocol.health", "import time", "take `now`"),
    (rules.pure_rooms_stay_pure, "planner.cost", "from random import Random", "an `rng`"),
    (rules.pure_rooms_stay_pure, "schedule.ring", "def f():\n    import asyncio.queues", "line 2"),
    (rules.pure_rooms_stay_pure, "protocol.health", "async def f(): pass", "return an effect"),
    (rules.time_and_environment_have_one_owner, "actors.actor", "import time", "only clock.py"),
    (rules.time_and_environment_have_one_owner, "transport.tcp", "from time import monotonic", "only clock.py"),
    (rules.time_and_environment_have_one_owner, "lab.hosts", "import os\nx = os.environ['X']", "only config.py"),
    (rules.time_and_environment_have_one_owner, "clock", "from os import getenv", "only config.py"),
    (
        rules.only_the_runtime_names_all_actors,
        "actors.courier",
        "from r2ccl.actors.profiler import Profiler",
        "runtime",
    ),
    (
        rules.only_the_runtime_names_all_actors,
        "actors.courier",
        "from r2ccl.actors import coordinator",
        "actors/runtime.py",
    ),
    (rules.no_module_level_mutable_state, "ids", "seen = []", "seen is module-level mutable state"),
    (rules.no_module_level_mutable_state, "ids", "CACHE: dict[int, int] = {}", "CACHE"),
    (rules.no_module_level_mutable_state, "ids", "import collections\nq = collections.deque()", "line 2"),
    (
        rules.no_module_level_mutable_state,
        "ids",
        "try:\n    t = {k: 1 for k in 'ab'}\nfinally:\n    pass",
        "line 2: t is",
    ),
    (rules.no_module_level_mutable_state, "ids", "n = 0\ndef f():\n    global n\n    n = 1", "`global`"),
    (rules.functions_are_short, "ids", "def long():\n" + "    x = 1\n" * 50, "long has 51 lines"),
    (rules.every_module_says_what_it_decides, "ids", "x = 1", "no docstring"),
)

ALLOWED: Final[tuple[tuple[Rule, str, str], ...]] = (
    (rules.arrows_go_down, "transport.tcp", "import r2ccl.protocol.wire\nfrom r2ccl.protocol import handshake"),
    (rules.arrows_go_down, "actors.courier", "from r2ccl.transport.interface import Device\nimport r2ccl.schedule.ir"),
    (rules.arrows_go_down, "communicator", "import r2ccl.transport.tcp\nfrom r2ccl.actors import runtime"),
    (rules.arrows_go_down, "cli.demo", "import r2ccl\nfrom r2ccl import connect\nfrom r2ccl.lab.hosts import Host"),
    (rules.arrows_go_down, "transport.nics", "import psutil\nfrom r2ccl.transport.interface import Device"),
    (rules.pure_rooms_stay_pure, "planner.cost", "if TYPE_CHECKING:\n    from random import Random"),
    (rules.pure_rooms_stay_pure, "actors.actor", "import asyncio\nasync def f(): await g()"),
    (rules.time_and_environment_have_one_owner, "clock", "import time"),
    (rules.time_and_environment_have_one_owner, "config", "import os\nos.environ"),
    (rules.only_the_runtime_names_all_actors, "actors.runtime", "from r2ccl.actors.courier import Courier"),
    (rules.no_module_level_mutable_state, "ids", "A = (1, 2)\nB: Final = {1: 2}\n__all__ = ['A']\ndef f(): x = []"),
    (rules.functions_are_short, "ids", 'def f():\n    """' + "a\n" * 20 + '    """\n' + "    x = 1\n" * 49),
    (rules.every_module_says_what_it_decides, "ids", ""),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "name", "source", "complaint"), VIOLATIONS)
def test_the_rule_catches_its_sample(rule: Rule, name: str, source: str, complaint: str) -> None:
    complaints = list(rule(Module.parse(name, source)))
    assert len(complaints) == 1
    assert complaint in complaints[0]


@pytest.mark.parametrize(("rule", "name", "source"), ALLOWED)
def test_the_rule_lets_good_code_pass(rule: Rule, name: str, source: str) -> None:
    assert list(rule(Module.parse(name, source))) == []


def test_every_rule_has_a_sample_that_it_catches_and_one_that_passes() -> None:
    assert {rule for rule, *_ in VIOLATIONS} == set(RULES)
    assert {rule for rule, *_ in ALLOWED} == set(RULES)


def test_long_files_are_questioned_and_longer_ones_refused() -> None:
    lengths = {"short.py": 400, "long.py": 401, "longer.py": 601, "reasoned.py": 500}
    assert [c.split(":")[0] for c in length_complaints(lengths, {"reasoned.py": "one table"})] == [
        "long.py",
        "longer.py",
    ]
    assert "one file per idea" in length_complaints({"x.py": 601}, {"x.py": "a reason does not help here"})[0]
    assert "take it out" in length_complaints({"x.py": 10}, {"x.py": "was long once"})[0]
