"""Labs for the tests here. Where the kernel refuses namespaces they are left out, and pytest counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2ccl.lab import Lab, can_create_namespaces


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Root always runs them: there, a refusal is a failure."""
    if os.geteuid() == 0 or can_create_namespaces()[0]:
        return
    here = Path(__file__).parent
    left_out = [item for item in items if item.get_closest_marker("namespaces") and here in item.path.parents]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two hosts, two rails, 200 Mbit/s."""
    with Lab(hosts=2, nics=2, rate_mbit_s=200) as opened:
        yield opened
