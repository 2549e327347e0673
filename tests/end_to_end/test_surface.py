"""The grid of all collectives, sizes, roots, dtypes and ops, between real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.ranks import loopback

pytestmark = pytest.mark.end_to_end

GRID_PATIENCE_S = 120.0
CHECKS_MIN = 800


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_every_collective_is_right_between_processes(size: int, tmp_path: Path) -> None:
    """More ranks than cores take every fourth dtype only."""
    with loopback(size, tmp_path, nics=2) as ranks:
        ranks.connect()
        made = ranks.ask("surface", patience_s=GRID_PATIENCE_S, every=1 if size < 4 else 4)
        assert len(set(made)) == 1
        assert made[0] > (CHECKS_MIN if size < 4 else 200)
        ranks.end_well()


@pytest.mark.torchrun
def test_torch_tensors_are_used_where_they_are_and_gathered_as_tensors(torchrun: str, tmp_path: Path) -> None:
    with loopback(3, tmp_path, python=str(Path(torchrun).with_name("python"))) as ranks:
        ranks.connect()
        made = ranks.ask("surface", patience_s=GRID_PATIENCE_S, torch=True)
        assert made[0] > CHECKS_MIN
        ranks.end_well()
