"""Published figures that curves are drawn beside."""

import json
from pathlib import Path
from statistics import fmean

import pytest

from manyview.envs.make import tasks
from manyview.report.published import read_published

FILE = Path(__file__).parents[2] / "results" / "published.json"


def test_ours_name_tasks_there_are_and_their_sources() -> None:
    rows = read_published(FILE)
    assert {row.task for row in rows} <= tasks().keys()
    assert {row.method for row in rows} == {"drqv2", "rad+re3"}
    assert all("@" in row.source for row in rows)  # a repository at a commit


def test_ours_have_the_means_that_were_published_at_100k_frames() -> None:
    means = {(row.task, row.method): fmean(row.returns) for row in read_published(FILE) if row.frames == 100_000}
    assert {name: round(mean) for name, mean in means.items()} == {
        ("dmc/ball_in_cup_catch", "drqv2"): 359,
        ("dmc/ball_in_cup_catch", "rad+re3"): 899,
        ("dmc/pendulum_swingup", "drqv2"): 235,
        ("dmc/pendulum_swingup", "rad+re3"): 817,
    }


@pytest.mark.parametrize("content", ["", "[]", '{"results": [{"method": "drqv2"}]}', '{"results": [1]}'])
def test_another_file_is_refused_with_the_form_it_should_have(content: str, tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r'must hold published figures as \{"results"'):
        read_published(path)


def test_a_row_without_returns_is_refused(tmp_path: Path) -> None:
    row = {"method": "a", "suite": "dmc", "task": "b", "frames": 1, "returns": [], "source": "c"}
    path = tmp_path / "published.json"
    path.write_text(json.dumps({"results": [row]}))
    with pytest.raises(ValueError, match="no returns"):
        read_published(path)
