"""How long each algorithm should take: the alpha-beta model, with a term for reductions and one for memory.

A message of m bytes takes alpha + m beta: a latency, and a time per byte (Hockney, "The communication challenge for
MPP", Parallel Computing 20, 1994). The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", IJHPCA 19, 2005; for the ring those of Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009; for the pipelined chain those of
Pjesivac-Grbovic et al., "Performance analysis of MPI collective operations", Cluster Computing 10, 2007. With m bytes,
n ranks, L = ceil(log2 n), p the largest power of two within n, f = 1 if n > p else 0, b the bytes of a chunk:

    all_reduce      recursive_doubling  (log2 p + 2 f) (alpha + m beta) + (log2 p + f) m gamma
                    halving_doubling    2 log2 p alpha + 2 (p-1)/p m (beta + delta) + 2 f (alpha + m beta)
                                        + ((p-1)/p + f) m gamma
                    ring                2 (n-1) alpha + 2 (n-1)/n m beta + (n-1)/n m gamma
    broadcast,      binomial            L (alpha + m beta), and for reduce L m gamma
    reduce          chain               (n-1) alpha + m beta + (n-2) min(b, m) beta, and for reduce as much of gamma
    barrier         dissemination       L alpha
    all_gather,     ring                (n-1) alpha + (n-1)/n m beta, and for reduce_scatter (n-1)/n m gamma
    reduce_scatter  bruck               L alpha + (n-1)/n m beta
                    direct              alpha + (n-2) o + (n-1)/n m beta + (n-1)/n m gamma
    gather,         binomial            L alpha + (n-1)/n m beta
    scatter         direct              alpha + (n-2) o + (n-1)/n m beta
    all_to_all      bruck               L (alpha + m/2 beta)
                    direct              alpha + (n-2) o + (n-1)/n m beta

Here m is all that a rank holds in the collective's larger state. o, the time that a rank is busy with one more message
while others are on their way, is the overhead of LogP (Culler et al., "LogP: Towards a realistic model of parallel
computation", PPoPP 1993).

By alpha and beta alone halving-doubling would always beat the ring for powers of two. What it lacks is the ring's
forwarding by chunk: a step's bytes have left the cache when the next step reads them. delta is the price of a byte's
second trip to memory. gamma is what reducing a byte takes; the formulas are linear in all five.

The figures are those of ``r2ccl tune`` where there are any. Else alpha and beta are guesses of the picture, o is a
quarter of alpha, delta is what one core does beyond its caches, and gamma nought: so it was before anything was
measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from r2ccl.tuning import WireCost

#: Not measured: 10 GB/s, what one core reads and writes beyond its caches.
DELTA_S_PER_BYTE = 1e-10
#: o, as a part of alpha, where it was not measured.
OVERHEAD = 0.25


@dataclass(frozen=True, slots=True)
class Wires:
    """The numbers of the model, for one rank over all its NICs, and the size of a chunk."""

    alpha_s: float
    beta_s_per_byte: float
    chunk_bytes: int
    gamma_s_per_byte: float = 0.0
    delta_s_per_byte: float = DELTA_S_PER_BYTE
    #: None: a part of alpha.
    overhead_s: float | None = None

    @property
    def busy_s(self) -> float:
        """With one more message."""
        return self.alpha_s * OVERHEAD if self.overhead_s is None else self.overhead_s

    def message_s(self, payload_bytes: float) -> float:
        return self.alpha_s + payload_bytes * self.beta_s_per_byte


def measured_wires(cost: WireCost, beta_s_per_byte: float, gamma_s_per_byte: float, chunk_bytes: int) -> Wires:
    """What ``r2ccl tune`` measured, where a byte takes ``beta_s_per_byte``."""
    delta, busy_s = cost.delta_s_per_byte, cost.overhead_s
    return Wires(cost.alpha_s, beta_s_per_byte, chunk_bytes, gamma_s_per_byte, delta, busy_s)


#: (ranks, payload bytes, wires) to seconds.
Formula = Callable[[int, int, Wires], float]


def recursive_doubling_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    rounds, folds = _rounds(ranks)
    reduced_s = (rounds + folds) * payload_bytes * wires.gamma_s_per_byte
    return (rounds + 2 * folds) * wires.message_s(payload_bytes) + reduced_s


def halving_doubling_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    rounds, folds = _rounds(ranks)
    moved = (1 - 1 / (1 << rounds)) * payload_bytes
    walked = 2 * rounds * wires.alpha_s + 2 * moved * (wires.beta_s_per_byte + wires.delta_s_per_byte)
    reduced_s = (moved + folds * payload_bytes) * wires.gamma_s_per_byte
    return walked + 2 * folds * wires.message_s(payload_bytes) + reduced_s


def ring_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    """Once around."""
    return (ranks - 1) * wires.message_s(payload_bytes / ranks)


def reducing_ring_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return ring_s(ranks, payload_bytes, wires) + _others(ranks, payload_bytes) * wires.gamma_s_per_byte


def twice_around_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return ring_s(ranks, payload_bytes, wires) + reducing_ring_s(ranks, payload_bytes, wires)


def binomial_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return (ranks - 1).bit_length() * wires.message_s(payload_bytes)


def chain_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    if ranks == 1:
        return 0.0
    filling = (ranks - 2) * wires.message_s(min(wires.chunk_bytes, payload_bytes))
    return filling + wires.message_s(payload_bytes)


def reducing_binomial_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return binomial_s(ranks, payload_bytes, _reducing(wires))


def reducing_chain_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return chain_s(ranks, payload_bytes, _reducing(wires))


def dissemination_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return (ranks - 1).bit_length() * wires.alpha_s


def in_company_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    """In a logarithmic number of messages, with no byte moved twice by the rank that moves the most."""
    return (ranks - 1).bit_length() * wires.alpha_s + _others(ranks, payload_bytes) * wires.beta_s_per_byte


def relayed_blocks_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return (ranks - 1).bit_length() * wires.message_s(payload_bytes / 2)


def direct_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    if ranks == 1:
        return 0.0
    started = wires.alpha_s + (ranks - 2) * wires.busy_s
    return started + _others(ranks, payload_bytes) * wires.beta_s_per_byte


def reducing_direct_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return direct_s(ranks, payload_bytes, _reducing(wires))


_FORMULAS: Mapping[tuple[str, str], Formula] = MappingProxyType(
    {
        ("all_reduce", "recursive_doubling"): recursive_doubling_s,
        ("all_reduce", "halving_doubling"): halving_doubling_s,
        ("all_reduce", "ring"): twice_around_s,
        ("broadcast", "binomial"): binomial_s,
        ("broadcast", "chain"): chain_s,
        ("reduce", "binomial"): reducing_binomial_s,
        ("reduce", "chain"): reducing_chain_s,
        ("barrier", "dissemination"): dissemination_s,
        ("all_gather", "bruck"): in_company_s,
        ("all_gather", "ring"): ring_s,
        ("reduce_scatter", "direct"): reducing_direct_s,
        ("reduce_scatter", "ring"): reducing_ring_s,
        ("gather", "binomial"): in_company_s,
        ("gather", "direct"): direct_s,
        ("scatter", "binomial"): in_company_s,
        ("scatter", "direct"): direct_s,
        ("all_to_all", "bruck"): relayed_blocks_s,
        ("all_to_all", "direct"): direct_s,
    }
)


def cost_s(collective: str, algorithm: str, ranks: int, payload_bytes: int, wires: Wires) -> float:
    """The expected time of a collective's algorithm. Raises ``ValueError`` where there is no formula."""
    formula = _FORMULAS.get((collective, algorithm))
    if formula is None:
        raise ValueError(f"no cost is known of {algorithm!r} for {collective}")
    return formula(ranks, payload_bytes, wires)


def _others(ranks: int, payload_bytes: int) -> float:
    """What is not this rank's own part."""
    return payload_bytes * (ranks - 1) / ranks


def _reducing(wires: Wires) -> Wires:
    """Whoever receives a byte reduces it before it goes on."""
    beta_s_per_byte = wires.beta_s_per_byte + wires.gamma_s_per_byte
    return dataclasses.replace(wires, beta_s_per_byte=beta_s_per_byte)


def _rounds(ranks: int) -> tuple[int, int]:
    """log2 p and f."""
    rounds = ranks.bit_length() - 1
    return rounds, int(ranks > 1 << rounds)
