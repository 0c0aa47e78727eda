"""QUALITY C3 and C4 with two actors and a learner on real Ray, by the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyview.envs.toy import HiddenGoal
from quality.plugin import Figure
from tests.support.toys import EVALUATION_EPISODES, TOY_SETTINGS

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.long]
BOUND = HiddenGoal(actions="continuous").max_success_single_view
OPTIONS = [
    # With chunks of 200 steps, two per actor in advance, the initial policy would collect most of so short a run.
    *("--preset", "minute", "--seed", "1", "--actors", "2", "--set", "scale.chunk_steps=25"),
    *(f"{part}.{name}={value}" for part, settings in TOY_SETTINGS.items() for name, value in settings.items()),
    *(f"evaluation.episodes={EVALUATION_EPISODES}", "evaluation.video=false", "logging.tensorboard=false"),
]


def train_and_evaluate(path: Path, task: str, *settings: str, frames: int) -> float:
    """Train by the command and return the mean evaluation reward per step, at most 1."""
    command = [sys.executable, "-m", "manyview", "train", task, "--method", "drqv2+mem", "--out", str(path), *OPTIONS]
    subprocess.run(
        [*command, f"schedule.frames={frames}", f"evaluation.every_frames={frames}", *settings],
        check=True,
        timeout=550,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    evaluation = [record for record in records if record["kind"] == "evaluation"][-1]
    assert evaluation["frames"] == frames
    return float(sum(evaluation["returns"]) / sum(evaluation["lengths"]))


@pytest.mark.quality("C3")
def test_both_views_together_find_the_goal(tmp_path: Path, figure: Figure) -> None:
    figure(train_and_evaluate(tmp_path / "run", "toy/hidden_goal_continuous", frames=1_000), "both views")


@pytest.mark.quality("C3")
@pytest.mark.parametrize("view", ["column", "row"])
def test_one_view_alone_finds_the_goal_as_often_as_one_coordinate_allows(
    tmp_path: Path, view: str, figure: Figure
) -> None:
    success = train_and_evaluate(tmp_path / "run", "toy/hidden_goal_continuous", f'env.views=["{view}"]', frames=1_000)
    figure(success / BOUND, "most of one view's bound")
    figure(success / BOUND, "least of one view's bound")


@pytest.mark.quality("C4")
def test_the_bonus_costs_nothing_on_a_dense_task(tmp_path: Path, figure: Figure) -> None:
    with_bonus = train_and_evaluate(tmp_path / "with", "toy/identity_continuous", frames=700)
    without_bonus = train_and_evaluate(tmp_path / "without", "toy/identity_continuous", "bonus.beta0=0", frames=700)
    figure(with_bonus / without_bonus)
