"""Train the GPT of ``train_gpt.py`` on emulated hosts with two NICs each, and cut one of them in the middle. As root:

    sudo .venv/bin/python examples/train_gpt_through_a_cut.py --python PATH/TO/PYTHON/WITH/TORCH

A first training is left alone; in a second one a NIC of host 1 loses its carrier after half of the steps and gets it
back after three quarters. The losses are compared to the bit. From the step on where the ranks have agreed on another
picture of the network and planned anew, sums are added in another order, so losses may differ in their last digits.
``--backend gloo`` shows what else happens.
"""

import argparse
import json
import queue
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from r2ccl.lab import Lab

TRAIN = Path(__file__).with_name("train_gpt.py")
ROOT = TRAIN.parents[1]
#: Whose NIC is cut, and which.
HOST, NIC = 1, 0
#: A training that says nothing for so long is taken for dead.
PATIENCE_S = 180.0


def lines_of(stream: Any) -> "queue.Queue[str | None]":
    """What a process says, line by line; None at its end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def trained(options: argparse.Namespace, cuts: bool) -> tuple[list[dict[str, Any]], str]:
    """The steps of one training as rank 0 tells them, and how it ended, if not well."""
    with Lab(hosts=options.hosts, nics=2, rate_mbit_s=options.rate_mbit_s) as lab:
        command = [options.python, str(TRAIN), "--json", f"--steps={options.steps}", f"--backend={options.backend}"]
        quiet = {"PYTHONPATH": str(ROOT) + options.path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "nic0"}
        ranks = [
            lab.popen(
                host,
                [*command, f"--timeout={options.timeout}"],
                env=quiet,
                stdout=subprocess.PIPE if host == 0 else subprocess.DEVNULL,
                stderr=None if options.verbose else subprocess.DEVNULL,
                text=True,
            )
            for host in range(options.hosts)
        ]
        lines = lines_of(ranks[0].stdout)
        steps: list[dict[str, Any]] = []
        while True:
            try:
                line = lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                return steps, f"no step for {PATIENCE_S:g} s after step {len(steps)}"
            if line is None:
                break
            steps.append(json.loads(line))
            if cuts and steps[-1]["step"] == options.steps // 2:
                lab.link_down(HOST, NIC)
            if cuts and steps[-1]["step"] == options.steps * 3 // 4:
                lab.link_up(HOST, NIC)
        codes = [rank.wait() for rank in ranks]
    return steps, "" if not any(codes) else f"the ranks ended with {codes} after step {len(steps)}"


def compared(alone: list[dict[str, Any]], cut: list[dict[str, Any]]) -> dict[str, Any]:
    """The unharmed training and the other, step by step."""
    replanned = next((step["step"] for step in cut if step.get("epoch", 0) != alone[0].get("epoch", 0)), None)
    equal = [one["bits"] == other["bits"] for one, other in zip(alone, cut, strict=True)]
    different = equal.index(False) + 1 if False in equal else None
    half, rest = len(cut) // 2, len(cut) * 3 // 4
    return {
        "steps": len(cut),
        "first_different_step": different,
        "replanned_before_the_end_of_step": replanned,
        "largest_difference": max(abs(one["loss"] - other["loss"]) for one, other in zip(alone, cut, strict=True)),
        "loss": [alone[-1]["loss"], cut[-1]["loss"]],
        "resent_bytes": cut[-1].get("resent_bytes"),
        "median_ms": {
            "alone": median_ms(alone),
            "before the cut": median_ms(cut[:half]),
            "without the NIC": median_ms(cut[half:rest]),
            "with it again": median_ms(cut[rest:]),
        },
        # The NIC goes while rank 0 is in the step after, or the one after that.
        "hit_steps_ms": [round(step["seconds"] * 1000, 1) for step in cut[half - 1 : half + 4]],
    }


def median_ms(steps: list[dict[str, Any]]) -> float:
    seconds: list[float] = [step["seconds"] for step in steps]
    return round(statistics.median(seconds) * 1000, 1)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch (default: this one)")
    parser.add_argument("--path", default="", help="what else it needs in PYTHONPATH, with a colon before")
    parser.add_argument("--backend", choices=("r2ccl", "gloo"), default="r2ccl")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate-mbit-s", type=float, default=500)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a collective may take")
    parser.add_argument("--json", action="store_true", help="the comparison as one line, for programs")
    parser.add_argument("--verbose", action="store_true", help="let the ranks write to standard error")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    alone, trouble = trained(options, cuts=False)
    cut, died = ([], "") if trouble else trained(options, cuts=True)
    if trouble or died:
        print(f"{options.backend}: {trouble or f'the training with the cut: {died}'}")
        return 1
    result = compared(alone, cut)
    if options.json:
        print(json.dumps(result))
        return 0
    for name, value in result.items():
        print(f"{name.replace('_', ' ')}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
