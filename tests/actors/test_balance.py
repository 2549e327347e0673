"""NICs of unequal speed, and of speeds that change, in whole jobs in virtual time: what each carries, and the total."""

from __future__ import annotations

import pytest

from tests.actors.balancing import MIB, Job, play


@pytest.mark.parametrize(("ranks", "in_flight"), [(2, 1), (3, 1), (3, 2), (4, 1)])
def test_a_nic_that_slows_down_to_a_tenth_loses_its_share_and_the_total_stays(ranks: int, in_flight: int) -> None:
    async def story(job: Job) -> None:
        before = await job.run_for(1.0)
        assert before.reached > 0.95
        assert 0.47 < before.shares[0] < 0.53
        job.set_rate(1, 0, 50)
        first_second = await job.run_for(1.0)
        assert first_second.reached > 0.75
        # In the second after it ranks agree on smaller chunks.
        assert (await job.run_for(1.0)).reached > 0.85
        after = await job.run_for(1.0)
        assert after.reached > 0.95
        assert after.shares[0] < 0.12
        job.set_rate(1, 0, 500)
        await job.run_for(2.0)
        restored = await job.run_for(0.5)
        assert restored.reached > 0.95
        assert 0.45 < restored.shares[0] < 0.55
        assert job.failovers == 0

    play(story, ranks, size_bytes=4 * MIB, in_flight=in_flight)


def test_of_large_operations_even_the_first_second_is_as_fast_as_the_nics_together() -> None:
    async def story(job: Job) -> None:
        await job.run_for(1.0)
        job.set_rate(1, 0, 50)
        for _ in range(2):
            assert (await job.run_for(1.0)).reached > 0.85  # ranks also plan anew meanwhile
        after = await job.run_for(1.0)
        assert after.reached > 0.97
        assert 0.07 < after.shares[0] < 0.10
        job.set_rate(1, 0, 500)
        assert (await job.run_for(1.0)).reached > 0.95

    play(story, 3, size_bytes=16 * MIB)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_of_small_operations_too_the_slow_nic_is_left_out_and_found_again(ranks: int) -> None:
    async def story(job: Job) -> None:
        before = await job.run_for(0.5)
        job.set_rate(1, 0, 50)
        await job.run_for(1.0)
        after = await job.run_for(2.0)
        assert after.reached > 0.83
        assert after.shares[0] < 0.03
        job.set_rate(1, 0, 500)
        await job.run_for(3.0)
        restored = await job.run_for(1.0)
        assert restored.reached > 0.9 * before.reached
        assert 0.35 < restored.shares[0] < 0.65

    play(story, ranks, size_bytes=MIB)


def test_a_nic_that_comes_to_a_standstill_of_a_hundredth_hurts_no_more_than_its_loss() -> None:
    async def story(job: Job) -> None:
        await job.run_for(0.5)
        job.set_rate(1, 0, 5)
        await job.run_for(3.0)
        assert (await job.run_for(3.0)).reached > 0.8

    play(story, 3, size_bytes=4 * MIB)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size_bytes", [8 * MIB, 16 * MIB])
def test_unequal_nics_are_used_in_proportion_within_twenty_collectives(ranks: int, size_bytes: int) -> None:
    """Measured: no NIC says here how fast it is."""

    async def story(job: Job) -> None:
        first = await job.run_times(20)
        assert first.reached > 0.8
        after = await job.run_times(20)
        assert after.reached > 0.92
        proportion = 200 / 2200
        assert 0.5 * proportion < after.shares[0] < 1.2 * proportion

    play(story, ranks, mbit_s=(200, 2000), size_bytes=size_bytes)


def test_a_process_that_stops_for_a_while_does_not_make_nics_look_slow() -> None:
    async def story(job: Job) -> None:
        await job.run_for(1.0)
        lanes = job.world.runtimes[0].courier.lanes[1]
        before = [lane.bandwidth for lane in lanes]
        fabric, loop = job.world.fabric, job.loop
        loop.call_later(0.1, fabric.freeze, 1)
        loop.call_later(0.4, fabric.thaw, 1)
        lowest = list(before)

        def look() -> None:
            lowest[:] = map(min, lowest, (lane.bandwidth for lane in lanes))
            loop.call_later(0.002, look)

        look()
        await job.run_for(0.5)
        assert all(low > 0.9 * was for low, was in zip(lowest, before, strict=True))
        assert (await job.run_for(0.3)).reached > 0.95

    play(story, 2, size_bytes=16 * MIB)


def test_noise_of_five_percent_moves_no_share() -> None:
    async def story(job: Job) -> None:
        await job.run_for(1.0)
        rng = job.world.random
        for _ in range(20):
            for rank in range(3):
                for nic in range(2):
                    job.set_rate(rank, nic, 500 * rng.uniform(0.95, 1.05))
            noisy = await job.run_for(0.1)
            assert noisy.reached > 0.8
            assert 0.44 < noisy.shares[0] < 0.56

    play(story, 3, size_bytes=4 * MIB)
