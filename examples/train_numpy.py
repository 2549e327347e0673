"""Train a small network on several ranks, with nothing but numpy, and cut a cable meanwhile:

    r2ccl run -n 2 examples/train_numpy.py --steps 100
    r2ccl lab run -- python examples/train_numpy.py --seconds 30         (and in another terminal: r2ccl lab fault ...)

Each rank has its own part of the data. After each step the gradients of all ranks are averaged by one all-reduce, so
that all have the same parameters, to the bit; the end checks that they do.
"""

import argparse
import asyncio
import hashlib
import time

import numpy as np

import r2ccl

INPUTS, HIDDEN, CLASSES, BATCH = 64, 2048, 8, 32
LEARNING_RATE = 0.05
PRINT_EVERY_S = 1.0


def data(rank: int, size: int, samples: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part: points, and what a network that nobody knows makes of them."""
    rng = np.random.default_rng(7)
    teacher = rng.standard_normal((INPUTS, CLASSES))
    x = rng.standard_normal((samples, INPUTS)).astype(np.float32)
    return x[rank::size], np.argmax(x @ teacher, axis=1)[rank::size]


def gradients(weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray, out: list[np.ndarray]) -> float:
    """The loss, and its gradients in ``out``: two layers, ReLU, softmax, cross entropy."""
    first, second = weights
    hidden = np.maximum(x @ first, 0)
    scores = hidden @ second
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(probabilities[rows, labels] + 1e-9).mean())
    probabilities[rows, labels] -= 1
    probabilities /= len(labels)
    np.matmul(hidden.T, probabilities, out=out[1])
    np.matmul(x.T, (probabilities @ second.T) * (hidden > 0), out=out[0])
    return loss


async def train(steps: int | None, seconds: float) -> None:
    """One rank. It ends after so many steps, or when rank 0's time is up."""
    async with r2ccl.connect() as comm:
        x, labels = data(comm.rank, comm.size)
        rng = np.random.default_rng(11)
        weights = [
            (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            for shape in ((INPUTS, HIDDEN), (HIDDEN, CLASSES))
        ]
        # One piece of memory for all gradients, and one more number: how many ranks want to stop.
        flat = np.zeros(sum(w.size for w in weights) + 1, np.float32)
        parts = np.split(flat[:-1], [weights[0].size])
        out = [part.reshape(w.shape) for part, w in zip(parts, weights, strict=True)]
        began = printed = time.monotonic()
        times, longest, step = list[float](), 0.0, 0
        while True:
            start = time.monotonic()
            rows = np.arange(step * BATCH, (step + 1) * BATCH) % len(x)
            loss = gradients(weights, x[rows], labels[rows], out)
            flat[-1] = step + 1 == steps or (steps is None and start - began > seconds)
            await comm.all_reduce(flat, r2ccl.AVERAGE)
            for w, gradient in zip(weights, out, strict=True):
                w -= LEARNING_RATE * gradient
            step += 1
            now = time.monotonic()
            times.append(now - start)
            longest = max(longest, now - start)
            if comm.rank == 0 and (now - printed >= PRINT_EVERY_S or flat[-1]):
                printed = now
                usual, most = 1e3 * float(np.median(times)), 1e3 * max(times)
                print(f"step {step:5}  loss {loss:.3f}  a step {usual:5.1f} ms, longest {most:5.1f} ms", flush=True)
                times.clear()
            if flat[-1]:
                break
        digest = hashlib.blake2b(b"".join(w.tobytes() for w in weights)).digest()
        digests = await comm.all_gather(np.frombuffer(digest, np.uint8))
        if comm.rank == 0:
            same = "the same on all ranks, to the bit" if len({d.tobytes() for d in digests}) == 1 else "DIFFERENT"
            print(f"the end: {step} steps, longest {1e3 * longest:.1f} ms; parameters are {same}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="end after so many")
    parser.add_argument("--seconds", type=float, default=20.0, help="else after so long (default: 20)")
    options = parser.parse_args()
    asyncio.run(train(options.steps, options.seconds))
