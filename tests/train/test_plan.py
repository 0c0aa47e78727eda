"""What a run will take, said beforehand."""

import pytest

from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.plan import plan
from tests.train.runs import short_rollouts, short_run


@pytest.mark.quality("E4")
def test_the_planned_replay_and_parameters_are_those_of_the_run() -> None:
    config = short_run(replay={"capacity": 3_000})
    planned, trainer = plan(config), OffPolicyTrainer(config)
    assert planned.data_bytes == trainer.replay.nbytes
    assert planned.parameters == sum(parameter.numel() for parameter in trainer.agent.parameters())


def test_hours_follow_from_steps_updates_and_evaluations() -> None:
    config = short_run(schedule={"frames": 1_000, "seed_frames": 100, "update_every_steps": 3})
    planned = plan(config)
    assert planned.updates == 300
    least = 1_000 * planned.step_s + 300 * planned.update_s
    assert least < planned.seconds == pytest.approx(least + (1 + 1_000 / 30) * planned.evaluation_s)


def test_planning_leaves_no_folder_for_the_replay(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("replay") / "inside"
    plan(short_run(replay={"folder": str(folder)}))
    assert not folder.exists()


def test_the_memory_of_a_long_rollout_is_planned_though_a_short_one_is_tried() -> None:
    """Its features, of which MEM's state is a part, are there twice for a moment."""
    envs, steps = 4, (100, 20_000)
    short, long = (plan(short_rollouts(rollout={"envs": envs, "steps": one})).update_bytes or 0 for one in steps)
    state_bytes = 4 * OnPolicyTrainer(short_rollouts()).agent.representation.state_dim
    assert long - short > 2 * envs * 19_900 * state_bytes
