"""Where the log goes: a file of one's own, standard error, or the handlers of the program; never twice to one place."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2ccl.errors import ConfigurationError
from r2ccl.telemetry.log_output import log_path, open_log

LOGGER = logging.getLogger("r2ccl")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The logger is the process's, and is left as it was found."""
    handlers, level = list(LOGGER.handlers), LOGGER.level
    yield
    assert LOGGER.handlers == handlers
    LOGGER.setLevel(level)


def messages(path: Path) -> list[str]:
    return [line.split(" r2ccl ", 1)[1] for line in path.read_text().splitlines()]


def test_host_and_process_are_filled_into_the_path_and_nothing_else_is() -> None:
    assert log_path("/logs/%h/r2ccl.%p.%h.log", "n1", 42) == "/logs/n1/r2ccl.42.n1.log"
    assert log_path("100%/%x%p", "%p", 7) == "100%/%x7"
    assert log_path("%h", "%p", 7) == "%p"


def test_each_line_is_in_the_file_at_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    close = open_log(logging.INFO, str(tmp_path / "log.%p"))
    path = tmp_path / f"log.{os.getpid()}"
    LOGGER.info("one")
    assert messages(path) == ["one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    LOGGER.debug("not that far")
    LOGGER.info("two\nlines")
    close()
    LOGGER.warning("too late")
    assert path.read_text().endswith("two\nlines\n")
    assert "not that far" not in path.read_text()


def test_a_file_that_is_there_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for word in ("one", "two"):
        close = open_log(logging.INFO, str(path))
        LOGGER.info("%s", word)
        close()
    assert messages(path) == ["one", "two"]


def test_two_users_of_one_file_write_each_line_once_and_the_last_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = open_log(logging.INFO, str(path))
    second = open_log(logging.INFO, f"{tmp_path}/../{tmp_path.name}/log")
    LOGGER.info("one")
    first()
    first()
    LOGGER.info("two")
    second()
    LOGGER.info("three")
    assert messages(path) == ["one", "two"]


def test_a_file_takes_warnings_also_where_no_level_was_asked_for(tmp_path: Path) -> None:
    before = LOGGER.level
    close = open_log(logging.WARNING, str(tmp_path / "log"))
    LOGGER.warning("lost")
    close()
    assert messages(tmp_path / "log") == ["lost"]
    assert LOGGER.level == before, "what the program chose stays"


@pytest.mark.parametrize("where", ["missing/log", "."])
def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(tmp_path: Path, where: str) -> None:
    path = tmp_path / where
    with pytest.raises(ConfigurationError, match=f"R2CCL_DEBUG_FILE: {os.path.abspath(path)} cannot be opened: "):
        open_log(logging.INFO, str(path))


def test_the_handlers_of_the_program_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.NullHandler()
    LOGGER.addHandler(handler)
    close = open_log(logging.INFO, "")
    assert LOGGER.level == logging.INFO
    assert LOGGER.handlers[-1] is handler
    close()
    LOGGER.removeHandler(handler)
    assert capsys.readouterr().err == ""


SCRIPT = """
import logging
from r2ccl.telemetry.log_output import open_log
logger = logging.getLogger("r2ccl")
first, second = open_log(logging.INFO, ""), open_log(logging.INFO, "")
logger.info("one")
first()
logger.info("two")
second()
logger.info("three")
assert not logger.handlers
open_log(logging.WARNING, "")()
logger.warning("four")
"""


def test_without_any_handler_lines_go_to_standard_error_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split(" r2ccl ")[-1] for line in done.stderr.splitlines()] == ["one", "two", "four"]
    assert done.stdout == ""
