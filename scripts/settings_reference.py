"""The reference of all settings as markdown, made from the table in r2ccl/config.py.

    make docs                                    writes docs/settings.md
    python scripts/settings_reference.py         prints it

tests/test_settings_reference.py compares the file with what is printed here, so the two cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from r2ccl.config import CHUNK_BYTES_LEAST, CHUNK_BYTES_MOST, KIB, LOG_LEVELS, MIB, Settings

HEAD = """\
# Settings

<!-- Made by `make docs` from r2ccl/config.py. Change it there. -->

Each setting is an environment variable and, by its name, a keyword of `r2ccl.connect`; the argument goes before the
variable, the variable before the default. A setting is read once, when a job connects. Times are in seconds, sizes in
bytes, written as plain numbers without a suffix. A value that cannot be read or is out of its range is a
`ConfigurationError`; a variable `R2CCL_...` that is no setting is warned about.

"""

TAIL = """
`connect_timeout_s` is also the argument `timeout` of `connect`. The argument `timeout` of a collective goes before
`timeout_s`. Chunks may be smaller than `chunk_bytes`: `r2ccl/planner/choose.py` says when.

## Same on all ranks

`chunk_bytes` and `eager_bytes`: plans depend on them, and calls of ranks that differ end in `CollectiveMismatch`. The
secret and the job's name: ranks that differ do not admit one another. `credit_bytes` binds the sender: what a rank may
have to keep is bounded by its peers' values.

## Not settings of ours

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as launchers set them, say who a rank is and where rank 0 is met;
`rank=`, `size=` and `rendezvous="tcp://host:port"` go before them.
"""


def value(default: Any, unit: str) -> str:
    """A default as one would write it into the variable, with its unit."""
    if default == "":
        return "empty"
    if isinstance(default, bool):
        return str(int(default))
    if unit == "bytes":
        return f"{default} ({default // MIB} MiB)" if default % MIB == 0 else f"{default} ({default // KIB} KiB)"
    number = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{number} {unit}".rstrip()


def accepted(field: dataclasses.Field[Any]) -> str:
    """What a setting may be, as ``Settings`` checks it."""
    special = {
        "chunk_bytes": f"{CHUNK_BYTES_LEAST} to {CHUNK_BYTES_MOST}",
        "checksum": "on, off, auto",
        "debug": ", ".join(LOG_LEVELS),
    }
    if field.name in special:
        return special[field.name]
    if isinstance(field.default, bool):
        return "0, 1"
    if isinstance(field.default, int):
        return "whole, from 0"
    return "from 0" if isinstance(field.default, float) else "text"


def row(field: dataclasses.Field[Any]) -> str:
    """One setting."""
    about = field.metadata
    default = value(field.default, about["unit"])
    return f"| `{about['variable']}` | `{field.name}` | {default} | {accepted(field)} | {about['why']} |"


def reference() -> str:
    """The whole file."""
    table = ["| variable | name | default | accepted | what it is, and why that number |", "|---|---|---|---|---|"]
    return HEAD + "\n".join([*table, *map(row, dataclasses.fields(Settings))]) + "\n" + TAIL


if __name__ == "__main__":
    sys.stdout.write(reference())
