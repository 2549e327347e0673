"""Every story is played as it is written. ``pytest --rewrite-stories`` writes anew what they lead to: read the diff."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.stories.harness import play
from tests.stories.script import BadStory, Story

FOLDER = Path(__file__).parent
STORIES = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_played_as_it_is_written(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    story = Story.parse(path.read_text())
    transcript = play(story)
    if request.config.getoption("--rewrite-stories"):
        story.transcript = transcript
        path.write_text(story.text())
    assert transcript == story.transcript


@pytest.mark.parametrize("name", STORIES)
def test_a_story_tells_the_same_twice(name: str) -> None:
    story = Story.parse((FOLDER / f"{name}.txt").read_text())
    assert play(story) == play(story)


def endings(transcript: str) -> list[str]:
    """How each operation ended where, without when."""
    lines = (line[14:] for line in transcript.splitlines() if "operation " in line)
    return sorted(re.sub(r"lost rank.*", "lost", line) for line in lines if re.search("right|WRONG|failed", line))


@pytest.mark.parametrize("name", STORIES)
def test_on_one_sided_hardware_every_story_ends_the_same(name: str) -> None:
    story = Story.parse((FOLDER / f"{name}.txt").read_text())
    assert endings(play(story, one_sided=True)) == endings(story.transcript)


@pytest.mark.parametrize(
    "text",
    [
        "world ranks=2\n",
        "# No such command.\nworld ranks=2\nsink rank 1\n",
        "# No world.\nrun 5ms\n",
        "# No unit.\nworld ranks=2\nrun 5\n",
        "# Cut what?\nworld ranks=2\ncut 1\n",
        "# No such option.\nworld ranks=2\nbarrier at 1\n",
    ],
)
def test_a_story_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises((BadStory, ExceptionGroup)):
        play(Story.parse(text))
