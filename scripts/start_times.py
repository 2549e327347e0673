"""How long a job of many ranks on this machine takes to start, and what of it is the interpreter's.

    python scripts/start_times.py -n 64

It starts so many processes by `r2ccl run`, each time with a program that does more: nothing; the imports that a rank
cannot do without (numpy, msgpack, xxhash, psutil, asyncio); `import r2ccl`; connect and a barrier. Once as a script,
whose ranks are forked where there are more of them than cores, and once as a program, each started by itself: there the
first three are the floor. Wall clock from the command to the last rank's end, and processor time of all of them.
Modules are compiled beforehand, as an installation has them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from r2ccl.config import environment

PROGRAMS = {
    "an interpreter": "pass",
    "imports that it needs": "import asyncio, numpy, msgpack, xxhash, psutil",
    "import r2ccl": "import r2ccl",
    "connect, barrier, close": (
        "import asyncio, r2ccl\n"
        "async def main():\n"
        "    async with r2ccl.connect(timeout=300) as comm:\n"
        "        await comm.barrier()\n"
        "asyncio.run(main())\n"
    ),
}


def run(command: list[str], ranks: int, environ: dict[str, str]) -> tuple[float, float]:
    """Wall clock, and processor time of all processes."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "r2ccl.cli.main", "run", "-n", str(ranks), "--", *command], check=True, env=environ
    )
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=64)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as directory:
        environ = {name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ.setdefault("PYTHONPYCACHEPREFIX", f"{directory}/compiled")
        print(f"{ranks} ranks, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
        for name, text in PROGRAMS.items():
            script = Path(directory, "program.py")
            script.write_text(text)
            run([str(script)], 1, environ)  # compiles
            for way, command in (("as a script", [str(script)]), ("by itself", [sys.executable, str(script)])):
                wall_s, processor_s = run(command, ranks, environ)
                print(f"{name:<26}{way:<14}{wall_s:6.1f} s   {processor_s:6.1f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
