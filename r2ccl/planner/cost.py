"""How long each algorithm should take: the alpha-beta model, with one term added for memory.

A message of m bytes takes alpha + m beta: a latency, and a time per byte (Hockney, "The communication challenge for
MPP", Parallel Computing 20, 1994). The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", IJHPCA 19, 2005; for the ring those of Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009; for the pipelined chain those of
Pjesivac-Grbovic et al., "Performance analysis of MPI collective operations", Cluster Computing 10, 2007. With m bytes,
n ranks, L = ceil(log2 n), p the largest power of two within n, f = 1 if n > p else 0, b the bytes of a chunk:

    recursive_doubling  (log2 p + 2 f) (alpha + m beta)
    halving_doubling    2 log2 p alpha + 2 (p-1)/p m (beta + delta) + 2 f (alpha + m beta)
    ring                2 (n-1) alpha + 2 (n-1)/n m beta
    binomial            L (alpha + m beta)
    chain               (n-1) alpha + m beta + (n-2) min(b, m) beta
    dissemination       L alpha

By alpha and beta alone halving-doubling would always beat the ring for powers of two. What it lacks is the ring's
forwarding by chunk: a step's bytes have left the cache when the next step reads them. delta is the price of a byte's
second trip to memory. (Reduction itself costs all algorithms alike where it matters, so it is left out.)
"""

from __future__ import annotations

from dataclasses import dataclass

#: 10 GB/s: what one core reads and writes beyond its caches.
DELTA_S_PER_BYTE = 1e-10


@dataclass(frozen=True, slots=True)
class Wires:
    """The two numbers of the model, for one rank over all its NICs, and the size of a chunk."""

    alpha_s: float
    beta_s_per_byte: float
    chunk_bytes: int

    def message_s(self, payload_bytes: float) -> float:
        return self.alpha_s + payload_bytes * self.beta_s_per_byte


def recursive_doubling_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    rounds, folds = _rounds(ranks)
    return (rounds + 2 * folds) * wires.message_s(payload_bytes)


def halving_doubling_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    rounds, folds = _rounds(ranks)
    moved = (1 - 1 / (1 << rounds)) * payload_bytes
    walked = 2 * rounds * wires.alpha_s + 2 * moved * (wires.beta_s_per_byte + DELTA_S_PER_BYTE)
    return walked + 2 * folds * wires.message_s(payload_bytes)


def ring_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return 2 * (ranks - 1) * wires.message_s(payload_bytes / ranks)


def binomial_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return (ranks - 1).bit_length() * wires.message_s(payload_bytes)


def chain_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    if ranks == 1:
        return 0.0
    filling = (ranks - 2) * wires.message_s(min(wires.chunk_bytes, payload_bytes))
    return filling + wires.message_s(payload_bytes)


def dissemination_s(ranks: int, payload_bytes: int, wires: Wires) -> float:
    return (ranks - 1).bit_length() * wires.alpha_s


def cost_s(algorithm: str, ranks: int, payload_bytes: int, wires: Wires) -> float:
    """The expected time of an algorithm by name. Raises ``ValueError`` for a name without a formula."""
    for formula in (recursive_doubling_s, halving_doubling_s, ring_s, binomial_s, chain_s, dissemination_s):
        if formula.__name__ == f"{algorithm}_s":
            return formula(ranks, payload_bytes, wires)
    raise ValueError(f"no cost is known of {algorithm!r}")


def _rounds(ranks: int) -> tuple[int, int]:
    """log2 p and f."""
    rounds = ranks.bit_length() - 1
    return rounds, int(ranks > 1 << rounds)
