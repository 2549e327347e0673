"""Train the GPT of ``train_gpt.py`` on emulated hosts with two NICs each, and cut one of them in the middle. As root:

    sudo .venv/bin/python examples/train_gpt_through_a_cut.py --python PATH/TO/PYTHON/WITH/TORCH
    sudo .venv/bin/python examples/train_gpt_through_a_cut.py --python ... --pairs 5 --write table.md --plot plot.svg

One training is left alone; in another a NIC of host 1 loses its carrier after half of the steps and gets it back after
three quarters. The losses are compared to the bit. From the step on where the ranks have agreed on another picture of
the network and planned anew, sums are added in another order, so losses may differ in their last digits. More
``--pairs`` say how much of the step time is chance.

gloo trains the same, on the NIC that stays, beside each pair; and once on the NIC that is cut, which ends it.
"""

import argparse
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from r2ccl.cli.bench_machine import Load, cores_used_by_others, machine
from r2ccl.cli.training_figures import Step, Training
from r2ccl.cli.training_page import Results, Setting, figures, page
from r2ccl.cli.training_plot import plot, require_matplotlib
from r2ccl.errors import R2cclError, UsageError
from r2ccl.lab import Lab, LabUnavailable

TRAIN = Path(__file__).with_name("train_gpt.py")
ROOT = TRAIN.parents[1]
#: Whose NIC is cut, and which; gloo is given this or the other one.
HOST, NIC, OTHER_NIC = 1, 0, 1
#: A training that says nothing for so long is taken for dead.
PATIENCE_S = 180.0
#: Fewer leave nothing to look at before, between and after.
STEPS_MIN = 20
#: With --logs, ranks tell of steps that take longer.
SLOW_S = 1.0
#: What the first step tells besides.
FACTS = ("torch", "parameters")


def lines_of(stream: Any) -> Iterator[str | None]:
    """What a process says, line by line, until its end; None where it says nothing for too long."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            yield None
            return
        if line == "":
            return
        yield line


class TrainingFailed(R2cclError):
    """A training that should have gone through did not."""


class Trainings:
    """Runs them, one after the other."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        runs = options.pairs * (3 if options.gloo else 2) + options.gloo
        self._bar = progress.add_task("", total=runs * options.steps)
        self._runs = 0
        #: What the ranks say of themselves.
        self.facts: dict[str, Any] = {}

    def run(self, backend: str, *, cuts: bool, nic: int = OTHER_NIC) -> Training:
        """One training; ``nic`` is for gloo."""
        options = self._options
        self._runs += 1
        self._progress.update(self._bar, description=f"{backend}, {'with the cut' if cuts else 'unharmed'}")
        steps: list[Step] = []
        cut_s = restored_s = None
        trouble = ""
        with Lab(hosts=options.hosts, nics=2, rate_mbit_s=options.rate_mbit_s) as lab:
            ranks = self._start(lab, backend, nic)
            for line in lines_of(ranks[0].stdout):
                if line is None:
                    trouble = f"no step for {PATIENCE_S:g} s"
                    break
                told = json.loads(line)
                steps.append(Step.of(told))
                self.facts |= {name: told[name] for name in FACTS if name in told}
                self._progress.advance(self._bar)
                if cuts and steps[-1].number == options.steps // 2:
                    cut_s = lab.link_down(HOST, NIC)
                if cuts and steps[-1].number == options.steps * 3 // 4:
                    restored_s = lab.link_up(HOST, NIC)
            if not trouble:
                codes = [rank.wait() for rank in ranks]
                trouble = f"the ranks ended with {', '.join(map(str, codes))}" if any(codes) else ""
            ended_s = time.monotonic()
        return Training(backend, tuple(steps), cut_s, restored_s, trouble, ended_s)

    def _start(self, lab: Lab, backend: str, nic: int) -> list[subprocess.Popen[str]]:
        options = self._options
        command = [options.python, str(TRAIN), "--json", f"--steps={options.steps}", f"--backend={backend}"]
        command += [f"--timeout={options.timeout}", f"--layers={options.layers}", f"--width={options.width}"]
        command += [f"--slow={SLOW_S}"] if options.logs else []
        variables = {"PYTHONPATH": str(ROOT) + options.path, "OMP_NUM_THREADS": "1"}
        if backend == "gloo":
            variables |= {"GLOO_SOCKET_IFNAME": f"nic{nic}", "MASTER_ADDR": lab.address(0, nic)}
        ranks = []
        for host in range(options.hosts):
            log = options.logs / f"{self._runs:02d}-{backend}-rank{host}.log" if options.logs else Path(os.devnull)
            out = subprocess.PIPE if host == 0 else subprocess.DEVNULL
            with log.open("w") as errors:
                ranks.append(lab.popen(host, command, env=variables, stdout=out, stderr=errors, text=True))
        return ranks

    def _to_the_end(self, training: Training) -> Training:
        """It must have come there. Raises :class:`TrainingFailed`. How the peer's processes end after their last step
        is its own affair: once in a while one of gloo's aborts."""
        all_steps = len(training.steps) == self._options.steps
        if not all_steps or (training.trouble and training.backend != "gloo"):
            raise TrainingFailed(
                f"{training.backend}: a training that should have gone through ended after step "
                f"{len(training.steps)}: {training.trouble}; --logs DIRECTORY keeps what the ranks write"
            )
        return training

    def all(self) -> Results:
        """The pairs, with gloo in turn. Raises :class:`TrainingFailed`."""
        unharmed: list[Training] = []
        harmed: list[Training] = []
        gloo: list[Training] = []
        for number in range(self._options.pairs):
            turn = ["unharmed", "harmed"] if number % 2 == 0 else ["harmed", "unharmed"]
            if self._options.gloo:
                turn.insert(number % 3, "gloo")
            for what in turn:
                backend = "gloo" if what == "gloo" else "r2ccl"
                kept = {"gloo": gloo, "harmed": harmed, "unharmed": unharmed}[what]
                kept.append(self._to_the_end(self.run(backend, cuts=what != "unharmed")))
        died = self.run("gloo", cuts=True, nic=NIC) if self._options.gloo else None
        return Results(tuple(unharmed), tuple(harmed), tuple(gloo), died)


def perform(options: argparse.Namespace) -> tuple[Results, dict[str, Any]]:
    """All trainings, and where they ran."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    before = Load.now()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        trainings = Trainings(options, progress)
        results = trainings.all()
    others = cores_used_by_others(before, Load.now())
    return results, {**machine(), **trainings.facts, "cores_used_by_others": round(others or 0.0, 2)}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    made.add_argument("--path", default="", help="what else it needs in PYTHONPATH, with a colon before")
    made.add_argument("--pairs", type=int, default=1, help="trainings without and with the cut, in turn")
    made.add_argument("--gloo", action=argparse.BooleanOptionalAction, default=True, help="train with gloo, too")
    made.add_argument("--hosts", type=int, default=4)
    made.add_argument("--steps", type=int, default=400)
    made.add_argument("--rate-mbit-s", type=float, default=2000)
    made.add_argument("--layers", type=int, default=2)
    made.add_argument("--width", type=int, default=96)
    made.add_argument("--timeout", type=float, default=60.0, help="seconds that a collective may take")
    made.add_argument("--write", type=Path, metavar="FILE", help="write the figures there, as a page in Markdown")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw loss and step time there (svg, png, pdf)")
    made.add_argument("--logs", type=Path, metavar="DIRECTORY", help="keep what ranks write, of slow steps, too")
    made.add_argument("--json", action="store_true", help="the figures as one line, for programs")
    return made


def parsed() -> argparse.Namespace:
    asked = parser()
    options = asked.parse_args()
    if options.pairs < 1:
        asked.error(f"--pairs {options.pairs}: at least 1")
    if options.hosts <= HOST or options.steps < STEPS_MIN:
        asked.error(f"--hosts is at least {HOST + 1}, and --steps {STEPS_MIN}, for there to be something to cut")
    return options


def shown_command(options: argparse.Namespace) -> str:
    """As someone else would type it: without what is where on this machine."""
    shown = ["--python", "PYTHON-WITH-TORCH", "--pairs", str(options.pairs)]
    defaults = parser().parse_args([])
    for name in ("gloo", "hosts", "steps", "rate_mbit_s", "layers", "width", "timeout"):
        if (value := getattr(options, name)) != getattr(defaults, name):
            flag = f"--{name.replace('_', '-')}"
            shown += ["--no-gloo"] if name == "gloo" else [flag, f"{value:g}"]
    for flag, file in (("--write", options.write), ("--plot", options.plot)):
        if file:
            shown += [flag, str(file) if not file.is_absolute() else file.name]
    return shlex.join(["examples/train_gpt_through_a_cut.py", *shown])


def report(options: argparse.Namespace, results: Results, facts: dict[str, Any]) -> None:
    """Say what was found, in all the ways that were asked for."""
    picture = None
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        plot(options.plot, results)
        beside = options.write.parent if options.write else Path()
        picture = os.path.relpath(options.plot, beside)
    setting = Setting(options.hosts, options.rate_mbit_s, options.steps, facts["parameters"])
    text = page(setting, results, facts, shown_command(options), picture)
    if options.write:
        options.write.write_text(text)
    if options.json:
        print(json.dumps(figures(results) | {"facts": facts}))
    else:
        print(text)


def main() -> int:
    options = parsed()
    try:
        if options.plot:
            require_matplotlib()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
        results, facts = perform(options)
    except (UsageError, LabUnavailable) as refused:
        print(refused, file=sys.stderr)
        return 2
    except TrainingFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    report(options, results, facts)
    return 0 if all(one.is_true for one in results.pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
