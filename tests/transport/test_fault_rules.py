"""Rules that hit a share of the frames, by chance."""

from __future__ import annotations

import random
from typing import cast

import pytest

from r2ccl.protocol.wire import Header
from r2ccl.transport.fault_rules import CORRUPT, PASS, RESENT_AFTER_S, Delay, Passage, Verdict, corrupt, lose
from r2ccl.transport.interface import Connection


def passage(payload_bytes: int) -> Passage:
    return Passage(cast(Connection, None), cast(Header, None), payload_bytes, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_share_of_the_frames_comes_as_late_as_what_is_sent_again(share: float) -> None:
    rule = lose(share, random.Random(1))
    verdicts = [rule(passage(10)) for _ in range(1000)]
    late = sum(verdict == Delay(RESENT_AFTER_S) for verdict in verdicts)
    assert late == pytest.approx(1000 * share, abs=60)
    assert all(verdict in (PASS, Delay(RESENT_AFTER_S)) for verdict in verdicts)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_share_of_the_chunks_is_corrupted_and_no_frame_without_a_payload(share: float) -> None:
    rule = corrupt(share, random.Random(1))
    verdicts: list[Verdict] = [rule(passage(10)) for _ in range(1000)]
    assert sum(verdict is CORRUPT for verdict in verdicts) == pytest.approx(1000 * share, abs=60)
    assert all(rule(passage(0)) is PASS for _ in range(100))
