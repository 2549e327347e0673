"""Train a small GPT on the text beside this file, in data parallel:

    torchrun --standalone --nproc-per-node 2 examples/train_gpt.py
    torchrun --standalone --nproc-per-node 2 examples/train_gpt.py --backend gloo

Needs torch: ``pip install 'r2ccl[torch]'``. Between the two nothing differs but the name of the backend. On hosts with
several NICs, pull a cable while it trains: with r2ccl the loss goes on to the bit. ``train_gpt_through_a_cut.py`` shows
that on one machine.

Each rank draws other pieces of the text, and DistributedDataParallel averages the gradients. Rank 0 prints the loss,
averaged over all ranks, and how long a step took; with ``--json`` one line for each step, with the bits of the loss.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import r2ccl.torch_backend  # makes the backend known; from torch 2.14 on its name alone does

TEXT = Path(__file__).with_suffix(".txt")


class Block(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention to what came before, then a layer for each place by itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.questions_keys_values = torch.nn.Linear(width, 3 * width)
        self.answer = torch.nn.Linear(width, width)
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        mixed = self.questions_keys_values(self.before_attention(x))
        shape = (batch, length, 3, self.heads, width // self.heads)
        questions, keys, values = mixed.view(shape).permute(2, 0, 3, 1, 4)
        heard = functional.scaled_dot_product_attention(questions, keys, values, is_causal=True)
        x = x + self.answer(heard.transpose(1, 2).reshape(batch, length, width))
        return x + self.layer(self.before_layer(x))


class Gpt(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Says for each place of a piece of text which character comes next."""

    def __init__(self, characters: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(characters, options.width)
        self.places = torch.nn.Embedding(options.context, options.width)
        self.blocks = torch.nn.Sequential(*(Block(options.width, options.heads) for _ in range(options.layers)))
        self.end = torch.nn.LayerNorm(options.width)
        self.next = torch.nn.Linear(options.width, characters)

    def forward(self, text: Any) -> Any:
        x = self.characters(text) + self.places(torch.arange(text.shape[1]))
        return self.next(self.end(self.blocks(x)))


def pieces(text: Any, options: argparse.Namespace, rank: int) -> Iterator[tuple[Any, Any]]:
    """Pieces of the text, drawn at random, and the same one character further on. Other ones on each rank."""
    draws = torch.Generator().manual_seed(options.seed * 1000 + rank)
    while True:
        starts = torch.randint(len(text) - options.context - 1, (options.batch,), generator=draws)
        rows = [text[start : start + options.context + 1] for start in starts.tolist()]
        whole = torch.stack(rows)
        yield whole[:, :-1], whole[:, 1:]


def train(options: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    letters = options.text.read_text()
    alphabet = sorted(set(letters))
    number_of = {character: number for number, character in enumerate(alphabet)}
    text = torch.tensor([number_of[character] for character in letters])
    torch.manual_seed(options.seed)
    gpt = Gpt(len(alphabet), options)
    trained = DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=options.rate)
    options.parameters = sum(parameter.numel() for parameter in gpt.parameters())
    if rank == 0 and not options.json:
        print(
            f"{size} ranks, {options.backend}, {options.parameters:,} parameters, {len(letters):,} characters of text",
            flush=True,
        )
    seconds = []
    drawn = pieces(text, options, rank)
    for step in range(1, options.steps + 1):
        waited = waits() if options.slow else {}
        began = time.perf_counter()
        given, wanted = next(drawn)
        loss = functional.cross_entropy(trained(given).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        mean /= size
        seconds.append(time.perf_counter() - began)
        if options.slow and seconds[-1] > options.slow:
            complain(step, seconds[-1], waited, options)
        if rank == 0:
            tell(step, float(mean), began, seconds, options)


def tell(step: int, loss: float, began: float, seconds: list[float], options: argparse.Namespace) -> None:
    """What rank 0 says of a step."""
    if options.json:
        about = {"step": step, "loss": loss, "bits": loss.hex(), "began": began, "seconds": seconds[-1]}
        about |= network(options)
        if step == 1:
            about |= {"torch": torch.__version__, "parameters": options.parameters}
        print(json.dumps(about), flush=True)
    elif step % options.every == 0 or step == 1:
        latest = statistics.median(seconds[-options.every :])
        print(f"step {step:5d}  loss {loss:.4f}  {latest * 1000:6.1f} ms a step", flush=True)


def waits() -> dict[str, float]:
    """Of each thread of this process, how many seconds it has been ready to run and had no core (on Linux)."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found


def complain(step: int, seconds: float, waited: dict[str, float], options: argparse.Namespace) -> None:
    """A step that took suspiciously long, to standard error: for how long this process had no core meanwhile, and what
    r2ccl knows. Any rank does this."""
    without_core = max(now - waited.get(thread, now) for thread, now in waits().items())
    about: dict[str, Any] = {
        "slow step": step,
        "rank": dist.get_rank(),
        "seconds": seconds,
        "without core": without_core,
    }
    about["load"] = os.getloadavg()
    if options.backend == "r2ccl":
        communicator = r2ccl.torch_backend.communicator()
        about |= {"stats": communicator.stats(), "events": [str(event) for event in communicator.events.since(0)[-40:]]}
    print(json.dumps(about, default=str), file=sys.stderr, flush=True)


def network(options: argparse.Namespace) -> dict[str, Any]:
    """What r2ccl knows of it: which agreed picture steps are planned from, and what was sent twice."""
    if options.backend != "r2ccl":
        return {}
    communicator = r2ccl.torch_backend.communicator()
    return {"epoch": communicator.epoch, "resent_bytes": communicator.counters.snapshot()["total"]["resent_bytes"]}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--backend", choices=("r2ccl", "gloo"), default="r2ccl")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20, help="print each so many steps")
    parser.add_argument("--json", action="store_true", help="one line for each step, for programs")
    parser.add_argument("--text", type=Path, default=TEXT, help="what to learn")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--context", type=int, default=64, help="characters in a piece of text")
    parser.add_argument("--batch", type=int, default=8, help="pieces a step on each rank")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=0.0, help="tell of steps of more seconds, and why; 0: of none")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a collective may take")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    torch.set_num_threads(1)  # ranks share the cores, and sums have the same bits each time
    dist.init_process_group(options.backend, timeout=timedelta(seconds=options.timeout))
    train(options)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
