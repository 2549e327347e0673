"""Measures how a ring goes on when a NIC slows down to a tenth, on emulated hosts, with plain TCP streams beside it.

    sudo python -m tests.end_to_end.measure_rebalancing [--mbit-s 500] [--mib 16] [--hosts 3]

Prints, as JSON, what one rank gets per second: of plain streams on both of its NICs at once, and of all-reduces;
before, while the NIC of the rank that it hears from is slow, and after. On a busy machine take low rates and small
chunks, or the CPUs are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from r2ccl.lab import Lab
from tests.end_to_end.ranks import Ranks, RunningStream, on_hosts

NICS = 2
PORT = 40_000
STREAM_S = 2.0
STEP_S = 0.5

_SINK = """
import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
peer = server.accept()[0]
buffer, total, began = bytearray(1 << 18), 0, None
while size := peer.recv_into(buffer):
    began = began or time.monotonic()
    total += size
print(total / (time.monotonic() - began))
"""
_SOURCE = """
import socket, sys, time
sink = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=(sys.argv[3], 0))
block, until = bytes(1 << 18), time.monotonic() + float(sys.argv[4])
while time.monotonic() < until:
    sink.sendall(block)
"""


def plain_mbit_s(lab: Lab, source: int, target: int) -> float:
    """One stream on each rail, all at once."""
    sinks: list[subprocess.Popen[str]] = []
    sources: list[subprocess.Popen[str]] = []
    for nic in range(NICS):
        argv = [sys.executable, "-c", _SINK, lab.address(target, nic), str(PORT + nic)]
        sinks.append(lab.popen(target, argv, stdout=subprocess.PIPE, text=True))
    for sink in sinks:
        assert sink.stdout is not None
        sink.stdout.readline()
    for nic in range(NICS):
        argv = [sys.executable, "-c", _SOURCE, lab.address(target, nic), str(PORT + nic), lab.address(source, nic)]
        sources.append(lab.popen(source, [*argv, str(STREAM_S)]))
    rates = [float(sink.communicate()[0]) for sink in sinks]
    for process in sources:
        process.wait()
    return sum(rates) * 8 / 1e6


def received(ranks: Ranks, rank: int) -> list[int]:
    """Bytes that came by each NIC."""
    nics = ranks[rank].ask("stats")["counters"]["nics"]
    return [nics[name]["received_bytes"] for name in sorted(nics)]


def steps(ranks: Ranks, rank: int, seconds: float) -> list[list[int]]:
    """Mbit/s by each NIC, step by step."""
    told = []
    before, then = received(ranks, rank), time.monotonic()
    for _ in range(round(seconds / STEP_S)):
        time.sleep(STEP_S)
        after, now = received(ranks, rank), time.monotonic()
        told.append([round((a - b) * 8 / 1e6 / (now - then)) for a, b in zip(after, before, strict=True)])
        before, then = after, now
    return told


def measure(options: argparse.Namespace) -> dict[str, object]:
    """All of it."""
    slow, fast = options.mbit_s / 10, options.mbit_s
    told: dict[str, object] = {"load": os.getloadavg()[0], **vars(options)}
    env = {"R2CCL_CHUNK_BYTES": str(options.chunk_kib << 10)}
    with Lab(hosts=options.hosts, nics=NICS, rate_mbit_s=fast) as lab:
        told["plain_before"] = round(plain_mbit_s(lab, 1, 2))
        lab.set_rate(1, 0, slow)
        told["plain_slowed"] = round(plain_mbit_s(lab, 1, 2))
        lab.set_rate(1, 0, fast)
        with tempfile.TemporaryDirectory() as directory, on_hosts(lab, Path(directory), env=env) as ranks:
            ranks.connect()
            stream = RunningStream(ranks, int(options.mib * (1 << 18)), in_flight=options.in_flight)
            stream.go_on(10, patience_s=120)
            told["before"] = steps(ranks, 2, 3)
            lab.set_rate(1, 0, slow)
            told["slowed"] = steps(ranks, 2, 6)
            lab.set_rate(1, 0, fast)
            told["restored"] = steps(ranks, 2, 6)
            told["operations"] = stream.stop()
            told["failovers"] = ranks.failovers()
    told["load_after"] = os.getloadavg()[0]
    return told


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit-s", type=float, default=500)
    parser.add_argument("--mib", type=float, default=16, help="size of an all-reduce")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--chunk-kib", type=int, default=256)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
