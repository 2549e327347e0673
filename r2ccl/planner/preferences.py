"""Algorithms that somebody asked for by name (R2CCL_ALGORITHMS), such as ``all_reduce=ring,broadcast=chain``.

For measurements: ``r2ccl tune`` compares algorithms on the same sizes, and so may anybody who doubts the planner. What
is asked for is done wherever it is allowed; where it is not (what sends from copies, above the eager limit), the
planner chooses as ever. The text is part of what all ranks have to have alike, as the sizes of chunks are.
"""

from __future__ import annotations

from r2ccl.errors import ConfigurationError
from r2ccl.schedule.algorithms import ALGORITHMS, algorithm


def preferred(text: str) -> dict[str, str]:
    """By collective the algorithm that was asked for. Raises :class:`ConfigurationError`."""
    asked: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        collective, _, name = (word.strip() for word in part.partition("="))
        if collective in asked:
            raise ConfigurationError(f"R2CCL_ALGORITHMS={text!r} names {collective!r} twice")
        collectives = sorted({known.collective for known in ALGORITHMS})
        if collective not in collectives:
            raise ConfigurationError(
                f"R2CCL_ALGORITHMS={text!r}: {collective!r} is none of {', '.join(collectives)}; "
                "write collective=algorithm, several with commas between"
            )
        try:
            algorithm(collective, name)
        except ValueError as unknown:
            raise ConfigurationError(f"R2CCL_ALGORITHMS={text!r}: {unknown}") from unknown
        asked[collective] = name
    return asked
