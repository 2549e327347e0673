"""What algorithms cost where ranks share nodes: there are two kinds of wires then, within a node and across.

The formulas of :mod:`r2ccl.planner.cost` take one latency and one time per byte. With h nodes, k ranks in the largest,
and the ranks of a node behind the same NICs, what a message across takes depends on how many of them send at once:

    alone    one rank of a node sends across: it has all its NICs to itself
    crowded  all k ranks do: each has a k-th of what its node carries
    shared   a byte that is cut up among the members: as long as the node takes for it
    within   through memory

Which of them holds for an algorithm:

    ring, chain             alone: ranks stand node by node, so that one wire leads into each node, and one out of it
    gather, scatter         alone: the root is the bottleneck, and has the NICs to itself
    tree                    within for the rounds among ranks of a node, alone for those among nodes, if nodes are
                            *even*: of k ranks each, k a power of two; else alone throughout
    doubling                likewise, but crowded across, and only if h is a power of two and ranks are in order, too
    bruck, direct           crowded
    hierarchical            shared for what crosses, within for what does not

A flat algorithm that meets both kinds pays the dearer one. The hierarchical formulas, with m bytes, alpha and beta of
each kind, n ranks, s of them on the smallest node (which gets most from elsewhere), and b the bytes of a chunk:

    all_reduce      2 (t + m max((h-1)/h beta_shared, (n-1)/n beta_within))
    reduce_scatter, t + m max((n-s)/n beta_shared, (n-1)/n beta_within)
    all_gather
    broadcast       (k-1) alpha_within + (h-1) alpha_alone + m max(beta_alone, 2 beta_within)
                    + b ((k-1) beta_within + (h-2) beta_alone)

where t = (k-1) alpha_within + (h-1) alpha_alone + (n-k-h+1) gamma: so many hops, and so many messages beyond them.
Chunks follow one another through both kinds of wires, so the slower kind sets the pace. beta_within stands for the rank
itself, which handles all that it sends, whatever the wire; of a broadcast a leader sends everything twice.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from r2ccl.planner.cost import Wires, binomial_s, cost_s, measured_wires
from r2ccl.planner.picture import Picture

#: Where nobody measured (``r2ccl tune``). Through shared memory a frame there and one back took 21 us with both ends
#: asleep, 10 awake; the operation around it is the same as over TCP.
WITHIN_LATENCY_S = 20e-6
#: What one rank moved in each direction in all-reduces of 16 to 128 MiB among two ranks of a node.
WITHIN_BANDWIDTH_BYTES_S = 3e9


@dataclass(frozen=True, slots=True)
class Levels:
    """The nodes, and wires of each kind."""

    nodes: int
    largest: int
    smallest: int
    #: Are all of the same size, a power of two?
    even: bool
    #: Does the number of a rank consist of that of its node, and below that, bit by bit, its place there?
    aligned: bool
    alone: Wires
    crowded: Wires
    shared: Wires
    within: Wires


def levels(picture: Picture, chunk_bytes: int) -> Levels:
    """Of a picture in which ranks share nodes."""
    sizes = [len(node) for node in picture.nodes]
    largest, smallest = max(sizes), min(sizes)
    alone = picture.wires(chunk_bytes)
    node_s_per_byte = max(1 / picture.node_bandwidth_bytes_s, 0.0 if picture.cost is None else alone.beta_s_per_byte)
    within = _within(picture, chunk_bytes)
    latency_s = max(alone.alpha_s, within.alpha_s)

    def across(s_per_byte: float) -> Wires:
        beta_s_per_byte = max(s_per_byte, within.beta_s_per_byte)
        return dataclasses.replace(alone, alpha_s=latency_s, beta_s_per_byte=beta_s_per_byte)

    in_order = [rank for node in picture.nodes for rank in node] == list(range(len(picture.nics)))
    even = largest == smallest and largest.bit_count() == 1
    return Levels(
        nodes=len(sizes),
        largest=largest,
        smallest=smallest,
        even=even,
        aligned=even and in_order and len(sizes).bit_count() == 1,
        alone=across(alone.beta_s_per_byte),
        crowded=across(largest * node_s_per_byte),
        shared=dataclasses.replace(alone, alpha_s=latency_s, beta_s_per_byte=node_s_per_byte),
        within=within,
    )


def _within(picture: Picture, chunk_bytes: int) -> Wires:
    tuning = picture.tuning
    if tuning is None or tuning.shared_memory is None:
        return Wires(WITHIN_LATENCY_S, 1 / WITHIN_BANDWIDTH_BYTES_S, chunk_bytes)
    cost = tuning.shared_memory
    return measured_wires(cost, cost.beta_s_per_byte, tuning.gamma_s_per_byte, chunk_bytes)


#: Of algorithms that are not listed, and not hierarchical: all ranks of a node send across at once.
_ALONE = frozenset(
    {
        ("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("broadcast", "chain"),
        ("reduce", "chain"), ("broadcast", "binomial"), ("reduce", "binomial"), ("gather", "binomial"),
        ("gather", "direct"), ("scatter", "binomial"), ("scatter", "direct"),
    }
)  # fmt: skip
_TREES = frozenset({("broadcast", "binomial"), ("reduce", "binomial")})


def cost_on_levels_s(collective: str, algorithm: str, ranks: int, payload_bytes: int, on: Levels) -> float:
    """The expected time of a collective's algorithm. Raises ``ValueError`` where there is no formula."""
    if algorithm == "hierarchical":
        return _hierarchical_s(collective, ranks, payload_bytes, on)
    if on.aligned and algorithm == "recursive_doubling":
        return _recursive_doubling_s(payload_bytes, on)
    if on.aligned and algorithm == "halving_doubling":
        return _halving_doubling_s(payload_bytes, on)
    if on.even and (collective, algorithm) in _TREES:
        return _rounds(on.largest) * on.within.message_s(payload_bytes) + binomial_s(on.nodes, payload_bytes, on.alone)
    wires = on.alone if (collective, algorithm) in _ALONE else on.crowded
    return cost_s(collective, algorithm, ranks, payload_bytes, wires)


def _hierarchical_s(collective: str, ranks: int, payload_bytes: int, on: Levels) -> float:
    started = (on.largest - 1) * on.within.alpha_s + (on.nodes - 1) * on.shared.alpha_s
    hops = on.largest + on.nodes - 2
    busy = max(ranks - 1 - hops, 0) * on.within.busy_s
    handled = (1 - 1 / ranks) * on.within.beta_s_per_byte
    match collective:
        case "all_reduce":
            crossing = (1 - 1 / on.nodes) * on.shared.beta_s_per_byte
            return 2 * (started + busy + payload_bytes * max(crossing, handled))
        case "reduce_scatter" | "all_gather":
            crossing = (1 - on.smallest / ranks) * on.shared.beta_s_per_byte
            return started + busy + payload_bytes * max(crossing, handled)
        case "broadcast":
            filling = (on.largest - 1) * on.within.beta_s_per_byte + (on.nodes - 2) * on.alone.beta_s_per_byte
            moved = payload_bytes * max(on.alone.beta_s_per_byte, 2 * on.within.beta_s_per_byte)
            return started + moved + min(on.alone.chunk_bytes, payload_bytes) * filling
    raise ValueError(f"no cost is known of 'hierarchical' for {collective}")


def _recursive_doubling_s(payload_bytes: int, on: Levels) -> float:
    """Every round moves the whole: the first ones within nodes."""
    within = _rounds(on.largest) * on.within.message_s(payload_bytes)
    return within + _rounds(on.nodes) * on.crowded.message_s(payload_bytes)


def _halving_doubling_s(payload_bytes: int, on: Levels) -> float:
    """What is left of the whole after the rounds within nodes is moved across."""
    within = (1 - 1 / on.largest) * payload_bytes
    across = (1 - 1 / on.nodes) * payload_bytes / on.largest
    started = _rounds(on.largest) * on.within.alpha_s + _rounds(on.nodes) * on.crowded.alpha_s
    moved = within * (on.within.beta_s_per_byte + on.within.delta_s_per_byte)
    return 2 * (started + moved + across * (on.crowded.beta_s_per_byte + on.crowded.delta_s_per_byte))


def _rounds(power_of_two: int) -> int:
    return power_of_two.bit_length() - 1
