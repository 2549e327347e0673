"""What holds for all tests: none leaves a task behind, and those that need namespaces or torchrun run where they can.

A kernel that forbids namespaces is no fault of the code, so there those tests are left out and counted in the report.
With ``--namespaces=require``, which CI gives as root, they stay in and fail. torch is large, so whoever has it says so
by ``--torchrun=PATH``, as CI does; the tests that need it are left out and counted elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

#: Enough for cancelled tasks to run their ``finally`` and for done-callbacks of done-callbacks.
TURNS_TO_SETTLE = 10
LEFT_OUT: Final = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    # Whoever develops this may have tuned this machine; tests go by the defaults, and so do the ranks that they start.
    os.environ.setdefault("R2CCL_TUNING", "off")
    # How fast a machine draws is nobody's fault: the first text of a fresh checkout takes two seconds on a slow one.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("r2ccl", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("r2ccl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--namespaces",
        choices=("auto", "require", "no"),
        default="auto",
        help="tests that make network namespaces: where possible (auto), always (require), never (no)",
    )
    parser.addoption(
        "--torchrun",
        metavar="PATH",
        help="tests that need torchrun run with this one; scripts/ci/torch_venv.sh makes it",
    )
    parser.addoption(
        "--frameworks",
        metavar="PATH",
        help="tests of frameworks run with this Python; scripts/ci/frameworks_venv.sh makes it",
    )
    parser.addoption(
        "--rewrite-stories", action="store_true", help="write anew what the stories of tests/stories lead to"
    )


def namespaces_refused() -> str:
    """Why the lab cannot emulate hosts here; empty if it can. It knows by trying, in a process that ends at once."""
    program = "from r2ccl.lab import can_create_namespaces as can; print(can()[1])"
    tried = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return tried.stdout.strip()


def leaves_no_task(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """``test``, failing if tasks that it started are still there when it returns."""

    @functools.wraps(test)
    async def checked(*args: Any, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        await test(*args, **kwargs)
        for _ in range(TURNS_TO_SETTLE):
            await asyncio.sleep(0)
        left = sorted(task.get_name() for task in asyncio.all_tasks() - before)
        assert not left, f"the test left tasks behind: {', '.join(left)}"

    return checked


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = leaves_no_task(item.obj)
    wanted = config.getoption("--namespaces")
    needing = [item for item in items if item.get_closest_marker("namespaces")]
    if needing and wanted != "require" and (why := "not wanted" if wanted == "no" else namespaces_refused()):
        leave_out(config, items, needing, f"that make network namespaces were left out: {why}")
    needing = [item for item in items if item.get_closest_marker("torchrun")]
    if needing and not config.getoption("--torchrun"):
        leave_out(config, items, needing, "that need torchrun were left out: --torchrun=PATH names none")
    needing = [item for item in items if item.get_closest_marker("frameworks")]
    if needing and not config.getoption("--frameworks"):
        leave_out(config, items, needing, "that need frameworks were left out: --frameworks=PATH names no Python")


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item], why: str) -> None:
    """Take tests out of the run and say so at its end."""
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    config.stash.setdefault(LEFT_OUT, []).append(f"{len(left_out)} tests {why}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for sentence in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(sentence, yellow=True)


@pytest.fixture(scope="session")
def torchrun(pytestconfig: pytest.Config) -> str:
    """A torchrun whose Python has torch and what r2ccl needs."""
    path: str = pytestconfig.getoption("--torchrun")
    return str(Path(path).absolute())
