"""Agents of other frameworks learn the toy tasks with MEM (bars of C2 and C3), and their examples run."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.sb3_mem import train
from experiments.adapters.__main__ import run

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(name: str, *arguments: str) -> str:
    """Run an example and return its output."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


@pytest.mark.parametrize("name", ["sb3_mem.py", "torchrl_mem.py", "rllib_mem.py"])
def test_an_example_has_at_most_80_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 80


@pytest.mark.slow
def test_the_example_of_stable_baselines_finds_the_goal() -> None:
    output = run_example("sb3_mem.py")
    assert int(output.split(" at ")[1].split("%")[0]) >= 90


@pytest.mark.slow
def test_the_example_of_torchrl_finds_the_treasure() -> None:
    assert "return 0.990" in run_example("torchrl_mem.py")


@pytest.mark.long
@pytest.mark.parametrize("agent", ["ppo", "sac"])
@pytest.mark.parametrize("task", ["identity", "hidden_goal"])
def test_stable_baselines_learns_the_toy_tasks_with_mem(task: str, agent: str) -> None:
    success = train(task, agent)
    print(f"{agent} on {task}: {success:.3f}")
    assert success >= 0.9


@pytest.mark.long
@pytest.mark.parametrize(("agent", "max_without_bonus"), [("sb3 ppo", 1), ("torchrl ppo", 2)])
def test_the_bonus_solves_the_deep_sea(agent: str, max_without_bonus: int) -> None:
    """The seeds are a few of those that `python -m experiments.adapters` recorded."""
    with_bonus = [run(agent, "mem", seed).solved_at_frame for seed in range(1, 5)]
    without_bonus = [run(agent, "none", seed).solved_at_frame for seed in range(1, 5)]
    assert sum(frame is not None for frame in with_bonus) >= 3
    assert sum(frame is not None for frame in without_bonus) <= max_without_bonus
