"""The flags of ``r2ccl bench``, one a line, as typer wants to have them."""

from __future__ import annotations

from typing import Annotated

import typer

from r2ccl.cli.bench_options import DTYPES, FILLING_MAX, FILLING_MIN, PEERS

Collective = Annotated[str, typer.Argument(metavar="COLLECTIVE", help="What to time.")]
Ranks = Annotated[int, typer.Option("-n", "--ranks", help="How many ranks.")]
Minbytes = Annotated[str, typer.Option("-b", "--minbytes", help="The smallest size: 4, 64K, 1M, 2G.")]
Maxbytes = Annotated[str, typer.Option("-e", "--maxbytes", help="The largest size.")]
Stepfactor = Annotated[
    float | None, typer.Option("-f", "--stepfactor", help="Multiply sizes by this; 4 if there is no -i.")
]
Stepbytes = Annotated[str | None, typer.Option("-i", "--stepbytes", help="Add this to sizes instead.")]
Iterations = Annotated[int, typer.Option("--iters", help="Timed iterations of a turn.")]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", help=f"Instead of --iters: {FILLING_MIN} to {FILLING_MAX}, to fill this time."),
]
Warmup = Annotated[int, typer.Option("-w", "--warmup_iters", help="Iterations before, not timed.")]
Dtype = Annotated[str, typer.Option("-d", "--datatype", help=f"{', '.join(DTYPES)}.")]
Op = Annotated[str, typer.Option("-o", "--op", help="sum, product, min, max, average, bitwise_and ...")]
Root = Annotated[int, typer.Option("-r", "--root", help="Of a collective that has one.")]
Checks = Annotated[int, typer.Option("-c", "--check", help="Operations of a turn that are checked; 0: none.")]
NicsPerRank = Annotated[int, typer.Option("--nics-per-rank", help="Loopback addresses per rank.")]
Peer = Annotated[str | None, typer.Option("--peer", help=f"{', '.join(PEERS)}.")]
PeerPython = Annotated[
    str | None,
    typer.Option("--peer-python", "--torch-python", help="Interpreter that has torch or mpi4py; default: this."),
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Turns per size; default 5 with a peer, else 1.")]
TimeoutS = Annotated[float, typer.Option("-T", "--timeout", help="A turn may take so many seconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object; the table goes to stderr.")]
Damage = Annotated[int, typer.Option("--damage", min=0, hidden=True)]
