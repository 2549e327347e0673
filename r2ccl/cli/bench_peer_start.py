"""The first moments of a peer's rank, in an interpreter that need not have r2ccl: numpy and the peer's library suffice.

    python .../bench_peer_start.py gloo OPTIONS           (JSON, see bench_turns.PeerOptions)
    python .../bench_peer_start.py gloo OPTIONS faults    (JSON, see faults_gloo.GlooOptions)

The modules that peers use import nothing of r2ccl but one another. Here the packages that they lie in are stood in for
by empty ones, so that importing them does not load r2ccl with all it needs. Python 3.10 or later.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path


def stand_in(name: str, directory: Path) -> None:
    """A package without its ``__init__``."""
    package = types.ModuleType(name)
    package.__path__ = [str(directory)]
    sys.modules[name] = package


def start(peer: str, options: str, of: str = "bench") -> None:
    """Become a rank of the peer, for the benchmark or for the table of faults."""
    here = Path(__file__).resolve().parent
    # Python puts this file's directory first, where the names of our modules might hide others.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]
    stand_in("r2ccl", here.parent)
    stand_in("r2ccl.cli", here)
    importlib.import_module(f"r2ccl.cli.{of}_{peer}").main(options)


if __name__ == "__main__":
    start(*sys.argv[1:])
