"""What a run will take, said beforehand."""

import pytest

from manyview.train import factory
from manyview.train import trainer as trainer_module
from manyview.train.dry_run import estimate_run
from manyview.train.memory_estimate import estimate_rollout_state_bytes
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from tests.support.runs import short_rollouts, short_run


@pytest.mark.quality("E4")
def test_the_planned_replay_and_parameters_are_those_of_the_run() -> None:
    config = short_run(replay={"capacity": 3_000})
    planned, trainer = estimate_run(config), OffPolicyTrainer(config)
    assert planned.data_bytes == trainer.replay.nbytes
    assert planned.parameters == sum(parameter.numel() for parameter in trainer.agent.parameters())


def test_hours_follow_from_steps_updates_and_evaluations() -> None:
    config = short_run(schedule={"frames": 1_000, "seed_frames": 100, "update_every_steps": 3})
    planned = estimate_run(config)
    assert planned.updates == 300
    least = 1_000 * planned.step_s + 300 * planned.update_s
    assert least < planned.seconds == pytest.approx(least + (1 + 1_000 / 30) * planned.evaluation_s)


def test_planning_leaves_no_folder_for_the_replay(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("replay") / "inside"
    estimate_run(short_run(replay={"directory": str(folder)}))
    assert not folder.exists()


def test_the_memory_of_a_long_rollout_is_planned_though_a_short_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trainer_module,
        "estimate_update_bytes",
        lambda agent, config, shapes: estimate_rollout_state_bytes(agent, config, shapes),
    )
    config = short_rollouts(rollout={"envs": 4, "steps": 20_000})
    trained = OnPolicyTrainer(config)
    assert estimate_run(config).update_bytes == estimate_rollout_state_bytes(trained.agent, config, trained.shapes)


def test_a_trial_of_many_environments_has_room_for_the_neighbours() -> None:
    assert estimate_run(short_rollouts(rollout={"envs": 30, "steps": 10}, bonus={"k": 7})).step_s > 0


def test_without_evaluations_planning_makes_no_environment_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "make_env", lambda *_, **__: pytest.fail("there is one robot"))
    assert estimate_run(short_rollouts(evaluation={"episodes": 0})).evaluation_s == 0
