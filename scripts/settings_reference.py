"""The reference of all settings as markdown, made from the table in r2ccl/config.py.

    make docs                                    writes docs/settings.md
    python scripts/settings_reference.py         prints it

tests/test_settings_reference.py compares the file with what is printed here, so the two cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from r2ccl.config import (
    CHUNK_BYTES_LEAST,
    CHUNK_BYTES_MOST,
    FILE_NAME,
    FILE_VARIABLE,
    KIB,
    LOG_LEVELS,
    MIB,
    POSITIVE,
    PRECEDENCE,
    Settings,
)

HEAD = """\
# Settings

<!-- Made by `make docs` from r2ccl/config.py. Change it there. -->

A setting is read once, when a job connects, from the first of these that has it:

{precedence}

`r2ccl info` prints every setting with its value and where it came from; so does the log from `R2CCL_DEBUG=INFO` on, for
those that are no defaults. Times are in seconds, sizes in bytes, written as plain numbers without a suffix.

A value that cannot be read or is out of its range is a `ConfigurationError` that names the argument, the variable, or
the file and its key. A variable `R2CCL_...` that is no setting is warned about; an argument or a key that is none is an
error.

"""

TAIL = """
## A file

Keys are the names of settings, at the top level, with values as TOML writes them:

```toml
nics = "eth0,eth1"
chunk_bytes = 131072
timeout_s = 300
insecure = false
```

The file that {file_variable} names has to be there; the other two may be. One file is read, the first that there is.
If it holds the secret and others can read it, that is warned about. Of a secret and a secret's file the one that comes
from further up the list holds.

## Notes

`debug_file` is added to, by as many ranks as have the same path; `%h` becomes the host's name and `%p` the number of
the process. Only its owner can read a file made so. Without it the log goes to standard error, or to the handlers that
the program gave Python's `logging`.

`connect_timeout_s` is also the argument `timeout` of `connect`. The argument `timeout` of a collective goes before
`timeout_s`. Chunks may be smaller than `chunk_bytes`: `r2ccl/planner/choose.py` says when.

## Same on all ranks

`chunk_bytes`, `eager_bytes` and `algorithms`: plans depend on them, and calls of ranks that differ end in
`CollectiveMismatch`. `tuning` may differ: what rank 0 finds there holds for all ([tuning](tuning.md)). The
secret and the job's name: ranks that differ do not admit one another. `credit_bytes` binds the sender: what a rank may
have to keep is bounded by its peers' values.

## Not settings of ours

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as launchers set them, say who a rank is and where rank 0 is met;
`rank=`, `size=` and `rendezvous="tcp://host:port"` go before them.
"""


def precedence() -> str:
    """Where settings come from, first come first served."""
    sources = {
        "argument": "the argument of `r2ccl.connect`, by the setting's name",
        "environment": "the environment variable",
        "file": f"the file that `{FILE_VARIABLE}` names, else `./{FILE_NAME}`, else `~/.config/{FILE_NAME}`",
        "default": "the default",
    }
    return "\n".join(f"{number}. {sources[name]}" for number, name in enumerate(PRECEDENCE, 1))


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
        "shared_memory": "auto, off",
        "share_least": "above 0, at most 1",
        "debug": ", ".join(LOG_LEVELS),
    }
    if field.name in special:
        return special[field.name]
    if isinstance(field.default, bool):
        return "0, 1"
    if isinstance(field.default, int):
        return "whole, from 1" if field.name in POSITIVE else "whole, from 0"
    if field.name in POSITIVE:
        return "above 0"
    return "from 0" if isinstance(field.default, float) else "text"


def row(field: dataclasses.Field[Any]) -> str:
    """One setting."""
    about = field.metadata
    default = value(field.default, about["unit"])
    return f"| `{about['variable']}` | `{field.name}` | {default} | {accepted(field)} | {about['why']} |"


def reference() -> str:
    """The whole file."""
    table = [
        "| variable | argument, key in a file | default | accepted | what it is, and why that number |",
        "|---|---|---|---|---|",
    ]
    head = HEAD.replace("{precedence}", precedence())
    tail = TAIL.replace("{file_variable}", f"`{FILE_VARIABLE}`")
    return head + "\n".join([*table, *map(row, dataclasses.fields(Settings))]) + "\n" + tail


if __name__ == "__main__":
    sys.stdout.write(reference())
