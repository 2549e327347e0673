"""A rank that ``r2ccl tune`` started: it takes part and says nothing.

python -m r2ccl.cli.tune_rank TURNS
"""

from __future__ import annotations

import sys

import uvloop

from r2ccl.cli.tune_job import Watcher, measure
from r2ccl.config import environment
from r2ccl.rendezvous.launch import place

if __name__ == "__main__":
    uvloop.run(measure(place(environment()), {}, int(sys.argv[1]), Watcher()))
