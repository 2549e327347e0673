"""Carries out the parts of ``r2ccl faults`` one after the other, and keeps what each came to.

Results are plain data from the start: what is in the file of a run that was interrupted is what this one would have
had in its place. The page and the picture are made of them alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from r2ccl.cli import faults_options as work
from r2ccl.cli import faults_random
from r2ccl.cli.demo_ranks import RankFailed
from r2ccl.cli.faults_figures import Trial, received_gbit_s
from r2ccl.cli.faults_kinds import Fault, Victim
from r2ccl.cli.faults_options import GLOO, MPTCP, R2CCL, Options, Part
from r2ccl.cli.faults_random import Round
from r2ccl.cli.faults_stage import (
    QUICK_RETURN,
    Hosts,
    add_mptcp_endpoints,
    gloo_environment,
    gloo_program,
    r2ccl_program,
    stream_program,
)
from r2ccl.cli.faults_trial import Watch, perform, perform_on_gloo, recovered, running
from r2ccl.clock import MonotonicClock
from r2ccl.errors import UsageError

if TYPE_CHECKING:
    from r2ccl.lab import Lab

ELEMENT_BYTES: Final = 4
#: A stream of MPTCP whose second subflow did not come about is no measure; it is made anew, so often at most.
STREAM_STARTS: Final = 6
STREAM_WARM_S: Final = 0.7
#: Of all rails' rate: less than this is one rail's.
ALL_RAILS: Final = 0.7
#: A trial that is void because its ranks did not start is repeated so often in a row.
VOID_MAX: Final = 3

#: Told the name of what runs, and the seconds of the estimate that are done.
Progress = Callable[[str, float], None]


@dataclass(slots=True)
class Results:
    """What is known so far."""

    options: Mapping[str, Any]
    #: Part -> its trials.
    trials: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    #: What could not be measured, and why.
    left_out: dict[str, str] = field(default_factory=dict)
    #: How long it took so far, and CPU seconds that other processes used meanwhile.
    seconds: float = 0.0
    others_s: float = 0.0
    file: Path | None = None

    @classmethod
    def open(cls, options: Options, file: Path | None) -> Results:
        """Those of the file, if there is one. Raises :class:`UsageError` if they are another run's."""
        if file is None or not file.exists():
            return cls(options.as_json(), file=file)
        kept = json.loads(file.read_text())
        if kept["options"] != options.as_json():
            raise UsageError(f"{file} is of a run with other options: {kept['options']}")
        seconds, others_s = kept["seconds"], kept["others_s"]
        return cls(kept["options"], kept["trials"], kept["rounds"], seconds=seconds, others_s=others_s, file=file)

    def keep(self) -> None:
        """After each part."""
        if self.file is not None:
            new = self.file.with_suffix(self.file.suffix + ".new")
            new.write_text(json.dumps(self.as_json()))
            new.replace(self.file)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "options": dict(self.options), "trials": self.trials, "rounds": self.rounds, "left_out": self.left_out,
            "seconds": self.seconds, "others_s": self.others_s,
        }  # fmt: skip

    @property
    def random(self) -> Round:
        """All rounds together."""
        return Round.sum(Round.parse(kept) for kept in self.rounds)


class Run:
    """All parts on one lab. What cannot be measured of others is left out; of r2ccl it is the end: RankFailed."""

    def __init__(self, options: Options, results: Results, lab: Lab, progress: Progress) -> None:
        self._options = options
        self._results = results
        self._lab = lab
        self._progress = progress
        self._done_s = 0.0

    def table(self) -> None:
        """Whatever is not there yet."""
        for part in work.parts(self._options):
            if part.name not in self._results.trials and not {part.who, part.fault.key} & set(self._results.left_out):
                self._results.trials[part.name] = [trial.as_json() for trial in self._part(part)]
                self._results.keep()
            self._done_s += work.part_s(self._options, part)

    def random_cuts(self) -> None:
        """Until there were as many as asked for, or it is hopeless."""
        options, rounds = self._options, self._results.rounds
        while (left := options.random_cuts - self._results.random.cuts) > 0:
            if faults_random.is_hopeless([Round.parse(kept) for kept in rounds]):
                self._results.left_out["random"] = (
                    f"ended after {len(rounds)} rounds: ranks failed before anything was cut"
                )
                return
            done = self._results.random
            share = done.cuts / options.random_cuts
            what = f"random cuts: {done.cuts:,} in {done.operations:,} operations, {done.wrong_elements} wrong"
            self._progress(what, self._done_s + share * work.random_s(options))
            cuts = min(faults_random.ROUND_CUTS, left)
            seed = options.seed * 100_003 + len(rounds)
            rounds.append(faults_random.play(Hosts(self._lab), seed, cuts, options.elements).as_json())
            self._results.keep()

    def _part(self, part: Part) -> list[Trial]:
        trials: list[Trial] = []
        wanted = self._options.trials(part.fault, part.who)
        void = 0
        while len(trials) < wanted:
            before = len(trials)
            try:
                if part.who == R2CCL:
                    self._on_r2ccl(part.fault, wanted, trials)
                elif part.who == GLOO:
                    self._on_gloo(part.fault, trials)
                else:
                    self._on_streams(part, trials)
            except RankFailed as failed:
                void = 0 if len(trials) > before else void + 1
                if void >= VOID_MAX and part.who == R2CCL:
                    raise
                if void >= VOID_MAX:
                    self._results.left_out[part.who] = str(failed).partition("\n")[0]
                    return trials
            self._say(part, len(trials), wanted)
        return trials

    def _say(self, part: Part, done: int, wanted: int) -> None:
        share_s = work.part_s(self._options, part) * done / wanted
        self._progress(f"{part.fault.title}, {part.who}: {done} of {wanted}", self._done_s + share_s)

    def _victim(self, trial: int) -> Victim:
        return Victim.of(trial, self._options.hosts, self._options.nics)

    def _on_r2ccl(self, fault: Fault, wanted: int, trials: list[Trial]) -> None:
        """As many as these ranks survive."""
        elements = self._options.elements
        hosts = Hosts(self._lab, {} if fault.is_alone else QUICK_RETURN)
        with running(hosts, r2ccl_program(self._options.seed + len(trials), elements)) as watch:
            while len(trials) < wanted:
                trials.append(perform(hosts, watch, fault, self._victim(len(trials)), elements * ELEMENT_BYTES))
                self._say(Part(fault, R2CCL), len(trials), wanted)
                if fault.is_alone or trials[-1].error or not recovered(watch, fault):
                    return

    def _on_streams(self, part: Part, trials: list[Trial]) -> None:
        multipath = part.who == MPTCP
        hosts = Hosts(self._lab)
        for _ in range(STREAM_STARTS):
            with running(hosts, stream_program(self._lab, multipath=multipath)) as watch:
                if self._are_on_all_rails(watch):
                    trials.append(perform(hosts, watch, part.fault, self._victim(len(trials)), 0))
                    return
        raise RankFailed(f"streams of {part.who} did not use all NICs in {STREAM_STARTS} starts")

    def _are_on_all_rails(self, watch: Watch) -> bool:
        begin_s = MonotonicClock.now() + STREAM_WARM_S / 2
        watch.until(begin_s + STREAM_WARM_S)
        rate = received_gbit_s(watch.ranks.records, (begin_s, begin_s + STREAM_WARM_S / 2))
        return rate > ALL_RAILS * self._options.nics * self._options.rate_mbit_s / 1e3

    def _on_gloo(self, fault: Fault, trials: list[Trial]) -> None:
        options = self._options
        assert options.torch_python is not None
        hosts = Hosts(self._lab, gloo_environment(self._lab))
        program = gloo_program(self._lab, options.torch_python, options.elements, options.gloo_timeout_s)
        # It uses the first NIC of those it is given.
        victim = Victim.of(len(trials) % options.hosts, options.hosts, options.nics)
        with running(hosts, program) as watch:
            trials.append(perform_on_gloo(hosts, watch, fault, victim, options.gloo_timeout_s))


def prepare_peers(lab: Lab, options: Options, results: Results) -> None:
    """What cannot take part or be made is left out, with the reason."""
    if shutil.which("nft") is None:
        results.left_out["loss"] = "there is no nft (apt-get install nftables)"
    if MPTCP in options.peers:
        try:
            add_mptcp_endpoints(lab)
        except UsageError as missing:
            results.left_out[MPTCP] = str(missing)
    if GLOO in options.peers and options.torch_python is None:
        results.left_out[GLOO] = "no interpreter with torch was named (--torch-python)"
