"""docs/settings.md says what the code says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from r2ccl.config import Settings
from r2ccl.errors import ConfigurationError
from scripts import settings_reference

FILE = Path(__file__).parent.parent / "docs" / "settings.md"
FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def test_the_file_is_what_the_script_prints() -> None:
    assert FILE.read_text() == settings_reference.reference(), "run `make docs`"


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_its_row(name: str) -> None:
    rows = [line for line in settings_reference.reference().splitlines() if f"| `{name}` |" in line]
    assert len(rows) == 1
    assert rows[0].count("|") == 6, "a bar in a cell ends it"
    assert FIELDS[name].metadata["variable"] in rows[0]


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_said_to_be_accepted_is_accepted_and_what_is_beyond_is_not(name: str) -> None:
    said = settings_reference.accepted(FIELDS[name])
    kind: type = type(FIELDS[name].default)
    if said == "text" or kind is bool:
        return
    if kind is str:
        good, bad = said.split(", "), ["LOUD", ""]
    elif " to " in said:
        good = said.split(" to ")
        bad = [str(int(good[0]) - 1), str(int(good[1]) + 1)]
    elif said.startswith("above 0"):
        good, bad = ["0.001", "1"], ["0", "-1"] + (["1.001"] if said.endswith("at most 1") else [])
    elif said == "whole, from 1":
        good, bad = ["1", "2"], ["0", "-1"]
    else:
        good, bad = ["0", "1"], ["-1"]
    for text in good:
        Settings().replace(**{name: kind(text)})
    for text in bad:
        with pytest.raises(ConfigurationError):
            Settings().replace(**{name: kind(text)})
