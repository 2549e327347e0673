"""The documents are true as far as a machine can tell: their programs run, their names exist, their links lead on.

Blocks of Python in the README and in docs/ are of two kinds. A *program* imports what it needs and is run by ``r2ccl
run``; if the block behind it shows a command and what it printed, that is compared. Anything else is a *fragment*: all
fragments of a document are run by four ranks, each with a ``comm``, an ``x``, ``np``, ``asyncio`` and ``r2ccl``. What
stands behind ``<!-- not run: REASON -->`` is compiled only.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import r2ccl
from r2ccl.config import FILE_VARIABLE, Settings

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES = [str(document.relative_to(ROOT)) for document in DOCUMENTS]
FRAGMENT_RANKS = 4

BLOCK = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n)?```python\n(?P<code>.*?)^```$"
    r"(\n\n```text\n(?P<shown>\$ r2ccl run .*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"\bR2CCL_[A-Z_]+[A-Z]\b")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of Python, and what the document says it prints."""

    document: str
    line: int
    code: str
    is_run: bool
    shown: str

    @property
    def is_program(self) -> bool:
        return self.is_run and self.code.startswith("import ")

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    name = str(document.relative_to(ROOT))
    return [
        Block(
            name, text.count("\n", 0, found.start("code")), found["code"], found["mark"] is None, found["shown"] or ""
        )
        for found in BLOCK.finditer(text)
    ]


BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
PROGRAMS = [block for block in BLOCKS if block.is_program]
FRAGMENTS = {name: [b for b in BLOCKS if b.document == name and b.is_run and not b.is_program] for name in NAMES}
WITH_FRAGMENTS = [name for name in NAMES if FRAGMENTS[name]]


def run_ranks(script: Path, ranks: int) -> list[str]:
    """Run a script as so many ranks and return the lines that they printed; fail with those if it fails."""
    command = [sys.executable, "-m", "r2ccl.cli.main", "run", "-n", str(ranks), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_there_are_programs_and_fragments_to_look_at():
    assert {block.document for block in PROGRAMS} >= {"README.md", "docs/index.md", "docs/quick-start.md"}
    assert len(WITH_FRAGMENTS) >= 5
    every = sum(document.read_text(encoding="utf-8").count("```python\n") for document in DOCUMENTS)
    assert every == len(BLOCKS), "a block that is indented, or marked in another way, is not looked at"


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs_and_prints_what_the_document_says(block: Block, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(block.code, encoding="utf-8")
    command, *expected = block.shown.splitlines() or ["$ r2ccl run -n 2 script.py"]
    words = shlex.split(command)
    printed = run_ranks(script, int(words[words.index("-n") + 1]))
    if expected:
        # Ranks print when they like; what one of them prints is in order.
        for rank in {line.partition(" ")[0] for line in [*printed, *expected]}:
            assert [line for line in printed if line.startswith(rank)] == [
                line for line in expected if line.startswith(rank)
            ]


@pytest.mark.parametrize("name", WITH_FRAGMENTS)
def test_the_fragments_of_a_document_run_on_four_ranks(name: str, tmp_path: Path):
    parts = ["import asyncio", "import numpy as np", "import r2ccl", ""]
    for block in FRAGMENTS[name]:
        parts.append(f"async def line_{block.line}(comm, x):\n{textwrap.indent(block.code, '    ')}")
    calls = "\n".join(
        f"        await line_{block.line}(comm, np.ones(8, np.float32))\n        await comm.barrier(timeout=60)"
        for block in FRAGMENTS[name]
    )
    parts.append(f"async def main():\n    async with r2ccl.connect() as comm:\n{calls}\n\nasyncio.run(main())\n")
    script = tmp_path / "fragments.py"
    script.write_text("\n".join(parts), encoding="utf-8")
    run_ranks(script, FRAGMENT_RANKS)


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.is_run], ids=str)
def test_what_is_not_run_is_at_least_python(block: Block):
    compile(block.code, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("name", NAMES)
def test_links_to_files_lead_somewhere(name: str):
    document = ROOT / name
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    targets = [found["target"].partition("#")[0] for found in LINK.finditer(text)]
    lost = [t for t in targets if t and ":" not in t and not (document.parent / t).exists()]
    assert not lost


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_that_a_document_names_exists(name: str):
    known = {field.metadata["variable"] for field in dataclasses.fields(Settings)} | {FILE_VARIABLE}
    # One that is not, in an example of a warning.
    known.add("R2CCL_CHUNKBYTES")
    assert set(SETTING.findall((ROOT / name).read_text(encoding="utf-8"))) <= known


def test_every_call_is_in_the_table_of_calls():
    text = (ROOT / "docs/collectives.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)\(", text, re.MULTILINE))
    calls = {
        name
        for name, function in inspect.getmembers(r2ccl.Communicator, inspect.isfunction)
        if not name.startswith("_") and name in vars(r2ccl.Communicator)
    }
    assert listed == calls


def test_every_public_name_is_in_the_api():
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
    assert {name for name in r2ccl.__all__ if name != "__version__" and name not in r2ccl.Op.__members__} <= shown


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [name for name in os.listdir(ROOT / "docs") if name.endswith(".md") and f"{name}\n" not in navigation]
    assert not missing
