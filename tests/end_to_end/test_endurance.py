"""What many operations and many connections leave behind: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.ranks import loopback

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

#: Python's allocator keeps what it likes; a leak of 30 bytes an operation is above this.
GROWTH_BYTES_MAX = 2 << 20
PATIENCE_S = 120.0


def test_memory_is_flat_over_100_000_small_operations(tmp_path: Path) -> None:
    with loopback(2, tmp_path) as ranks:
        ranks.connect()
        assert ranks.ask("small_operations", PATIENCE_S, count=20_000) == [0, 0]
        early = ranks.ask("usage")
        assert ranks.ask("small_operations", PATIENCE_S, count=80_000) == [0, 0]
        late = ranks.ask("usage")
        growth = [after["rss"] - before["rss"] for before, after in zip(early, late, strict=True)]
        print(f"resident memory grew by {growth} bytes from 20,000 to 100,000 operations")
        assert max(growth) < GROWTH_BYTES_MAX
        assert [after["descriptors"] for after in late] == [before["descriptors"] for before in early]
        ranks.end_well()


def test_connecting_and_closing_200_times_leaves_nothing(tmp_path: Path) -> None:
    with loopback(2, tmp_path, nics=2) as ranks:
        usages = [ranks.ask("connect_and_close", PATIENCE_S, count=40) for _ in range(5)]
        early, late = usages[0], usages[-1]
        growth = [after["rss"] - before["rss"] for before, after in zip(early, late, strict=True)]
        print(f"resident memory grew by {growth} bytes from 40 to 200 connections")
        assert [after["descriptors"] for after in late] == [before["descriptors"] for before in early]
        assert max(growth) < GROWTH_BYTES_MAX
        ranks.ask("leave")
