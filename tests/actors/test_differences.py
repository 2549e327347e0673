"""Calls that differ are named by everybody's error, whatever else plans depend on."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.errors import CollectiveMismatch
from r2ccl.sim.world import World
from tests.simulated import simulate

LONG = (
    "all_reduce=recursive_doubling, broadcast=hierarchical, barrier=dissemination, reduce=binomial, "
    "all_gather=hierarchical, reduce_scatter=hierarchical, gather=binomial, scatter=binomial, all_to_all=direct"
)


@pytest.mark.parametrize("algorithms", ["", LONG, "all_reduce=ring" + " " * 5000], ids=["none", "all", "spaces"])
def test_a_difference_is_named_and_costs_no_link_however_much_is_asked_for(algorithms: str) -> None:
    async def story(world: World) -> None:
        works = [comm.all_reduce(np.ones(3 + comm.rank)) for comm in world.communicators]
        for failure in await asyncio.gather(*works, return_exceptions=True):
            assert isinstance(failure, CollectiveMismatch)
            assert failure.calls == {rank: f"all_reduce(float64[{3 + rank}], sum)" for rank in range(2)}
        for comm in world.communicators:
            assert not [event for event in comm.events.since(0) if event.fields.get("change") == "UP->DOWN"]

    simulate(story, algorithms=algorithms)
