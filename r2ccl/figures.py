"""What a rank says at the meeting of what messages cost, and what it makes of what rank 0 said.

Only rank 0 announces figures, so there is nothing to compare and nobody to be refused: a rank with a file of its own
goes by rank 0's like the others, and its log says so.
"""

from __future__ import annotations

import logging

from r2ccl.config import Settings, environment
from r2ccl.planner.preferences import preferred
from r2ccl.topology import AddressBook
from r2ccl.tuning import Tuning, TuningFile, find_tuning

logger = logging.getLogger("r2ccl")


def own_figures(settings: Settings) -> TuningFile | None:
    """The tuning that is found here. Raises :class:`~r2ccl.errors.ConfigurationError`, for R2CCL_ALGORITHMS too."""
    preferred(settings.algorithms)
    return find_tuning(settings.tuning, environment())


def to_announce(rank: int, own: TuningFile | None, shares_memory: bool) -> Tuning | None:
    """What the others are to plan by."""
    if rank != 0 or own is None:
        return None
    return own.tuning if shares_memory else own.tuning.without_shared_memory()


def log_figures(rank: int, own: TuningFile | None, book: AddressBook, was_named: bool) -> None:
    """Whose figures hold. ``was_named``: this rank was told which file to take."""
    if own is None:
        return
    announced = book[0].tuning
    if rank == 0:
        logger.info("plans are made from %s: %s", own.path, own.measured)
    elif announced is None or own.tuning.without_shared_memory() != announced.without_shared_memory():
        holds = "by default figures, for rank 0 has no tuning" if announced is None else "by rank 0's tuning"
        level = logging.WARNING if was_named else logging.INFO
        logger.log(level, "plans are made %s, not from %s", holds, own.path)
