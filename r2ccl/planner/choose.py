"""Which algorithm, and chunks of which size: a pure function of request, ranks and picture, so that all ranks agree.

The algorithm is the one that the cost model expects to be fastest among those that are allowed, by figures that were
measured (``r2ccl tune``) or else by defaults; so the sizes at which algorithms change are nobody's constants. One that
was asked for by name (R2CCL_ALGORITHMS) goes before, where it is allowed. Some rules are no matter of cost: what sends
from copies is never used for more than is small (``Picture.small_bytes``); neither is the direct reduce-scatter, whose
receivers keep what comes out of turn; and where blocks of an all-to-all differ only the direct way knows their sizes.
Hierarchical schedules there are only where some ranks share a node and others do not; costs come from ``levels`` then.

The size of chunks:

* never above the setting (256 KiB), or between ranks of one machine eight times as much (``Picture.chunk_bytes_most``);
* at most about 2 ms on the slowest NIC, because a chunk is what is lost with a path and what a heartbeat queues behind.
  In steps of 32 KiB: 128 KiB on a NIC of 500 Mbit/s;
* a transfer has one for each NIC, so that all carry. Cutting it up further, so that forwarding can begin earlier, costs
  more than it gains where handling a chunk and not the wire is the limit: 1 MiB over two ranks on loopback took 364 us
  in chunks of 256 KiB, 498 us in chunks of half that, 612 us in quarters (one operation on two idle cores);
* but not below 32 KiB for either reason: what a chunk costs in itself would then be as much as its bytes;
* in a chain, above 256 KiB only where a transfer has four chunks for each rank that forwards: all ranks behind it wait
  until the first has come through.

Sizes are multiples of 4 KiB, or of the item where the item doesn't divide that, or the setting is smaller.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from r2ccl.config import KIB
from r2ccl.planner.cost import cost_s
from r2ccl.planner.levels import cost_on_levels_s, levels
from r2ccl.planner.picture import Picture
from r2ccl.planner.preferences import preferred
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm, algorithm
from r2ccl.schedule.ir import Program

CHUNK_S_MAX = 0.002
CHUNK_BYTES_MIN = 32 * KIB
#: Up to here a chain does not look at the number of chunks, and above it wants so many for each rank that forwards.
CHAINED_BYTES_ANYWAY = 256 * KIB
CHAINED_CHUNKS = 4
PAGE_BYTES = 4 * KIB


@dataclass(frozen=True, slots=True)
class Choice:
    """How to do one request."""

    algorithm: str
    chunk_bytes: int
    #: For people: what was compared.
    reason: str
    #: The ranks of each node, for the schedule; empty: all the same.
    nodes: tuple[tuple[int, ...], ...] = ()


def choose(request: Request, ranks: int, picture: Picture) -> Choice:
    """The fastest allowed algorithm. Raises ``ValueError`` if the arguments do not fit one another."""
    if len(picture.nics) != ranks:
        raise ValueError(f"a picture of {len(picture.nics)} ranks for {ranks} ranks")
    if not 0 <= request.root < ranks:
        raise ValueError(f"root {request.root} of {ranks} ranks")
    expected = {
        candidate.name: _expected_s(candidate, request, ranks, picture) for candidate in _allowed(request, picture)
    }
    # Of equals the later one: the list goes from few steps to few bytes, and with two ranks the ring is
    # halving-doubling that forwards by chunk.
    fastest = min(reversed(expected), key=lambda name: expected[name])
    if picture.algorithms:
        asked = preferred(picture.algorithms).get(request.kind.value, "")
        fastest = asked if asked in expected else fastest
    chunk_bytes = _chunk_bytes(algorithm(request.kind.value, fastest), request, ranks, picture)
    reason = _reason(request, ranks, picture, expected, fastest, chunk_bytes)
    return Choice(fastest, chunk_bytes, reason, picture.nodes)


def build(choice: Choice, request: Request, ranks: int, rank: int) -> Program:
    """The chosen algorithm's program of one rank."""
    shape = dataclasses.replace(request.shape, nodes=choice.nodes)
    return algorithm(request.kind.value, choice.algorithm).build(ranks, rank, shape)


def _allowed(request: Request, picture: Picture) -> list[Algorithm]:
    is_small = picture.is_small(request)
    allowed = [
        known
        for known in ALGORITHMS
        if known.collective == request.kind.value
        and (is_small or not _is_for_small_only(known))
        and (picture.nodes or known.name != "hierarchical")
    ]
    insisted = [known for known in allowed if picture.insists and known.name == "hierarchical"]
    return insisted or allowed


def _is_for_small_only(known: Algorithm) -> bool:
    return known.sends_from_copies or (known.collective, known.name) == ("reduce_scatter", "direct")


def _expected_s(candidate: Algorithm, request: Request, ranks: int, picture: Picture) -> float:
    chunk_bytes = _chunk_bytes(candidate, request, ranks, picture)
    collective, name, payload_bytes = candidate.collective, candidate.name, request.payload_bytes
    if picture.nodes:
        return cost_on_levels_s(collective, name, ranks, payload_bytes, levels(picture, chunk_bytes))
    return cost_s(collective, name, ranks, payload_bytes, picture.wires(chunk_bytes))


def largest_chunk_bytes(picture: Picture) -> int:
    """What no chunk exceeds: by the setting, or less where the slowest NIC would be busy with a chunk for too long."""
    by_time = round(picture.slowest_nic_bytes_s * CHUNK_S_MAX / CHUNK_BYTES_MIN) * CHUNK_BYTES_MIN
    return min(picture.chunk_bytes_most, max(CHUNK_BYTES_MIN, by_time))


def _chunk_bytes(candidate: Algorithm, request: Request, ranks: int, picture: Picture) -> int:
    wanted = largest_chunk_bytes(picture)
    if not request.uneven:
        transfer_bytes = request.payload_bytes // _pieces(candidate, ranks, picture)
        nics = max(len(nics) for nics in picture.nics)
        wanted = min(wanted, max(CHUNK_BYTES_MIN, _in_pages(transfer_bytes, nics)))
        if candidate.name == "chain":
            forwarded = _in_pages(transfer_bytes, nics * CHAINED_CHUNKS * max(1, ranks - 2))
            wanted = min(wanted, max(CHAINED_BYTES_ANYWAY, forwarded))
    granule = PAGE_BYTES if wanted >= PAGE_BYTES and PAGE_BYTES % request.item_bytes == 0 else request.item_bytes
    return max(granule, wanted // granule * granule)


def _in_pages(size: int, parts: int) -> int:
    """Bytes of a part, in whole pages."""
    return -(-size // (parts * PAGE_BYTES)) * PAGE_BYTES


def _pieces(candidate: Algorithm, ranks: int, picture: Picture) -> int:
    """Into how many transfers the payload is cut."""
    if candidate.name == "hierarchical":
        columns = max(map(len, picture.nodes))
        return {"all_reduce": len(picture.nodes) * columns, "broadcast": 1}.get(candidate.collective, ranks)
    return ranks if candidate.name in ("ring", "direct") else 1


def _reason(
    request: Request, ranks: int, picture: Picture, expected: dict[str, float], fastest: str, chunk_bytes: int
) -> str:
    others = [f"{name} {_ms(seconds)}" for name, seconds in expected.items() if name != fastest]
    text = f"{request.kind.value} of {request.payload_bytes} bytes over {ranks} ranks{_on_nodes(picture)} "
    text += f"in epoch {picture.epoch}: "
    text += f"{fastest} {_ms(expected[fastest])}"
    if others:
        text += f", against {', '.join(others)}"
    if picture.cost is not None:
        text += f"; by what was measured on {picture.wire.replace('_', ' ')}"
    if request.kind is CollectiveKind.ALL_REDUCE and "recursive_doubling" not in expected:
        text += f"; recursive_doubling sends from copies, so only up to {picture.small_bytes(request.kind)} bytes"
    return f"{text}; chunks of {chunk_bytes} bytes"


def _on_nodes(picture: Picture) -> str:
    """Such as ``on 3 nodes of 1 to 2 ranks``."""
    if not picture.nodes:
        return ""
    sizes = [len(node) for node in picture.nodes]
    most, least = max(sizes), min(sizes)
    return f" on {len(sizes)} nodes of {most if least == most else f'{least} to {most}'} ranks"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
