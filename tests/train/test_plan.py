"""What a run will take, said beforehand."""

import pytest

from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.plan import plan
from tests.train.runs import short_run


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
