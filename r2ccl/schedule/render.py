"""A schedule as a table for people: one line a transfer, in the order of steps."""

from __future__ import annotations

from collections.abc import Sequence

from r2ccl.schedule.causality import Causality, establish, in_words
from r2ccl.schedule.ir import Program

_HEADINGS = ("step", "transfer", "segment", "applied as", "send waits for", "receive waits for", "ack")


def render(programs: Sequence[Program]) -> str:
    """All ranks' programs as one table. Raises :class:`ScheduleError` if they do not fit together.

    ``3:1`` in a column of waits means: for what arrives in step 3 from rank 1.
    """
    causality = establish(programs)
    rows = [_HEADINGS, *(_row(causality, i) for i in range(len(causality.transfers)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _row(causality: Causality, i: int) -> tuple[str, ...]:
    transfer, send, receive = causality.transfers[i], causality.send_of(i), causality.receive_of(i)
    if receive.reduce:
        applied = "received + own" if receive.received_first else "own + received"
    else:
        applied = "copy" if transfer.stop > transfer.start else "signal"
    return (
        str(transfer.step),
        f"{transfer.source} -> {transfer.target}",
        in_words(transfer.segments),
        applied,
        _waits(causality, transfer.source, send.after),
        _waits(causality, transfer.target, receive.after),
        "needed" if send.needs_ack else "",
    )


def _waits(causality: Causality, rank: int, after: tuple[int, ...]) -> str:
    receives = causality.programs[rank].receives
    return " ".join(f"{receives[index].step}:{receives[index].source}" for index in after)
