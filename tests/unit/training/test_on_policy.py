"""Algorithm 2: contents of rollouts, updates, resume, and validation of settings."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks.run_comparison import compare_runs, compare_trees
from manyview.config.overrides import apply_overrides
from manyview.envs import ContractError, View, make_vector
from manyview.envs.vector import stack_observations
from manyview.methods import BONUSES
from manyview.report.metrics_file import read_records
from manyview.training import OnPolicyTrainer, RunDir, checkpoint, factory, run
from manyview.training import evaluation as evaluation_module
from manyview.training.evaluation import Evaluation, evaluate_policy
from manyview.training.preprocessing import to_batched_tensors
from manyview.training.runner import DivergedError, Runner
from manyview.training.signals import StopRequest
from manyview.utils.seeding import derive_seed
from tests.support.runners import abandon_runner, advance_to, open_runner, read_warnings
from tests.support.runs import SeedRecorder, make_short_config, make_short_rollout_config

STEPS_PER_ROLLOUT, FRAMES_PER_ROLLOUT = 5, 20


def fill_rollout(trainer: OnPolicyTrainer) -> None:
    """Advance the trainer until its rollout is full."""
    while not trainer.rollout.is_full:
        trainer.advance()


def list_records(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind from the metrics file."""
    return [record for record in read_records(run_dir.metrics_file) if record["kind"] == kind]


def test_a_rollout_holds_the_transitions_of_its_environments() -> None:
    """Equal actions in environments with equal seeds give the same transitions."""
    config = make_short_rollout_config(rollout={"steps": 25})
    trainer = OnPolicyTrainer(config)
    first_frames = trainer.rollout.frames[0].clone()
    fill_rollout(trainer)
    rollout = trainer.rollout
    assert torch.equal(rollout.frames[0], first_frames)
    reference = make_vector(config.task, 4)
    reference.reset(seed=derive_seed(config.seed, "episodes", 0))
    for step in range(25):
        observation, reward, terminated, truncated, _ = reference.step(rollout.action[step].numpy())
        images = np.stack([observation[view.name].transpose(0, 3, 1, 2) for view in trainer.shapes.cameras], 1)
        assert np.array_equal(rollout.frames[step + 1], images)
        assert np.array_equal(rollout.reward_ext[step], reward)
        assert np.array_equal(rollout.terminated[step], terminated)
        assert np.array_equal(rollout.truncated[step], truncated)
    reference.close()
    assert rollout.truncated.sum() == 8
    assert (trainer.counters.steps, trainer.counters.frames) == (100, 100)
    assert trainer.counters.episodes == 4 + 8, "four began, and two of each ended"
    trainer.close()


def test_the_final_value_of_a_truncated_episode_is_that_of_its_last_observation() -> None:
    """The final observation of the second rollout comes from identical environments."""
    config = make_short_rollout_config(rollout={"steps": 10}, env={"augmented_view": "crop"}, agent={"epochs": 1})
    trainer = OnPolicyTrainer(config)
    reference = make_vector(config.task, 4)
    reference.reset(seed=derive_seed(config.seed, "episodes", 0))
    for _ in range(2):
        while trainer.rollout.is_full:
            trainer.advance()
        fill_rollout(trainer)
        rollout = trainer.rollout
        for step in range(10):
            *_, info = reference.step(rollout.action[step].numpy())
    reference.close()
    assert rollout.truncated[9].all()
    views, mask = to_batched_tensors(
        stack_observations(list(info["final_obs"])), trainer.shapes.cameras, trainer.device
    )
    env_ids = torch.arange(4)
    derived_views = trainer.shapes.derived_views(views, mask, draw_ids=torch.full_like(env_ids, 10), env_ids=env_ids)
    assert derived_views[0].shape[1] == 3, "two cameras and a crop"
    assert torch.equal(rollout.final_value[9], trainer.agent.predict_values(*derived_views))  # no update since
    assert torch.equal(rollout.compute_next_value()[9], rollout.final_value[9])
    trainer.close()


@pytest.mark.parametrize(("unit", "elapsed"), [("rollouts", [0, 1, 2]), ("agent_steps", [20, 40, 60])])
def test_beta_decays_by_its_unit(tmp_path: Path, unit: str, elapsed: list[int]) -> None:
    run_dir = RunDir(tmp_path / "run")
    bonus = {"beta0": 0.5, "beta_decay": 0.1, "unit": unit}
    assert run(make_short_rollout_config(bonus=bonus, schedule={"frames": 60}), run_dir)
    assert [record["beta"] for record in list_records(run_dir, "train")] == pytest.approx(
        [0.5 * 0.9**n for n in elapsed]
    )


def test_every_row_is_in_one_minibatch_per_epoch() -> None:
    trainer = OnPolicyTrainer(make_short_rollout_config())
    fill_rollout(trainer)
    for epoch in range(2):
        rows = torch.cat(trainer._minibatches[3 * epoch : 3 * epoch + 3])
        assert rows.sort().values.tolist() == [*range(20)]
    first, second = (torch.cat(trainer._minibatches[start : start + 3]).tolist() for start in (0, 3))
    assert first != second
    while not trainer.can_checkpoint:
        trainer.advance()
    assert (trainer.counters.updates, trainer.counters.rollouts) == (6, 1)
    trainer.close()


@pytest.mark.parametrize("method", ["ppo+mem", "ppo+re3", "ppo+ride", "ppo+none", "ppo+curl"])
def test_every_method_runs_to_its_end(tmp_path: Path, method: str) -> None:
    run_dir = RunDir(tmp_path / "run")
    assert run(make_short_rollout_config(method), run_dir)
    (end,) = list_records(run_dir, "end")
    assert (end["frames"], end["updates"], end["state"]) == (120, 36, "finished")
    train_records = list_records(run_dir, "train")
    assert [record["updates"] for record in train_records] == [6, 12, 18, 24, 30, 36], "one record a rollout"
    assert not list(run_dir.path.glob("replay/*")), "nothing is kept for later"


def test_a_run_with_continuous_actions_finishes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    assert run(make_short_rollout_config(task="toy/hidden_goal_continuous"), run_dir)


@pytest.mark.quality("D1")
@pytest.mark.parametrize("method", ["ppo+mem", "ppo+ride"])
@pytest.mark.parametrize("frames", [24, 70, 100])
def test_a_killed_run_resumes_to_the_same_result(tmp_path: Path, method: str, frames: int) -> None:
    config, reference_dir, run_dir = (
        make_short_rollout_config(method),
        RunDir(tmp_path / "whole"),
        RunDir(tmp_path / "run"),
    )
    run(config, reference_dir)
    runner = Runner(config, run_dir)
    advance_to(runner, frames)
    runner.advance()
    abandon_runner(runner)
    assert run(config, run_dir)
    assert compare_runs(reference_dir, run_dir) == []


@pytest.mark.quality("D6")
@pytest.mark.parametrize("num_advances", [1, 3, 6, 8])
def test_a_stop_within_a_rollout_or_its_updates_saves_the_previous_boundary(tmp_path: Path, num_advances: int) -> None:
    config, reference_dir, run_dir = make_short_rollout_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, reference_dir)
    with open_runner(config, run_dir, frames=40) as runner:
        trainer: Any = runner.trainer
        while not trainer.can_checkpoint:
            runner.advance()
        for _ in range(num_advances):
            runner.advance()
        assert not trainer.can_checkpoint
        runner.save(checkpoint.format_checkpoint_name(trainer.checkpoint_frames, stop=True))
    assert checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)[0].name in ("000000040", "000000040.stop")
    assert run(config, run_dir)
    (resumed,) = list_records(run_dir, "resume")
    assert (resumed["frames"], resumed["resume_mode"]) == (40, "strict")
    newest_tensors = [
        checkpoint.load_checkpoint(checkpoint.list_checkpoints(directory.checkpoints_dir)[0]).state["agent"]["tensors"]
        for directory in (reference_dir, run_dir)
    ]
    for name, tensor in newest_tensors[0].items():
        assert torch.equal(tensor, newest_tensors[1][name]), name


@pytest.mark.quality("D3")
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(tmp_path: Path) -> None:
    config, reference_dir, run_dir = make_short_rollout_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, reference_dir)
    runner = Runner(config, run_dir)
    advance_to(runner, 90)
    abandon_runner(runner)
    damaged_file = checkpoint.list_checkpoints(run_dir.checkpoints_dir)[0] / "state.safetensors"
    content = damaged_file.read_bytes()
    for offset in np.linspace(0, len(content) - 1, 200).astype(int):
        damaged_file.write_bytes(content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :])
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.load_checkpoint(damaged_file.parent)
    damaged_file.write_bytes(content[:-1])
    assert run(config, run_dir)
    assert any("is not used" in text for text in read_warnings(run_dir))
    tensors = [
        checkpoint.load_newest_checkpoint(directory.checkpoints_dir)[1].state["agent"]["tensors"]
        for directory in (reference_dir, run_dir)
    ]
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


class NaNRewardEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Environment whose eighth step gives a NaN reward."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, *rest = self.env.step(action)
        return observation, float("nan") if self.steps == 8 else reward, *rest


def make_nan_reward_env() -> gym.Env[Any, Any]:
    from manyview.envs.toy import HiddenGoal

    return NaNRewardEnv(HiddenGoal())


@pytest.mark.quality("S1")
def test_a_nan_reward_is_refused_in_its_step_and_not_stored() -> None:
    trainer = OnPolicyTrainer(
        make_short_rollout_config(task="tests.unit.training.test_on_policy:make_nan_reward_env", rollout={"steps": 12})
    )
    for _ in range(7):
        trainer.advance()
    before = trainer.rollout.reward_ext.clone()
    with pytest.raises(ContractError, match=r"make_nan_reward_env\[0\].*reward.*nan"):
        trainer.advance()
    assert trainer.rollout.length == 7
    assert torch.equal(trainer.rollout.reward_ext, before)
    trainer.close()


def inject_nan_advantages(monkeypatch: pytest.MonkeyPatch, updates: range) -> None:
    """Set the advantages to NaN in these updates, whose count includes skipped ones."""
    update_minibatch, num_updates = OnPolicyTrainer._update_minibatch, [0]

    def update_with_nan(self: OnPolicyTrainer) -> Any:
        advantage = self.rollout.advantage.clone()
        if num_updates[0] in updates:
            self.rollout.advantage.fill_(torch.nan)
        num_updates[0] += 1
        try:
            return update_minibatch(self)
        finally:
            self.rollout.advantage.copy_(advantage)

    monkeypatch.setattr(OnPolicyTrainer, "_update_minibatch", update_with_nan)


@pytest.mark.quality("S3")
@pytest.mark.parametrize("first_update", [14, 15])  # 15 to 17 are the last of their rollout
def test_non_finite_updates_are_skipped_and_three_restore_the_last_good_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_update: int
) -> None:
    inject_nan_advantages(monkeypatch, range(first_update, first_update + 3))
    monkeypatch.setattr("manyview.training.checkpoint_manager.MAX_CHECKPOINTS", 9)
    run_dir = RunDir(tmp_path / "run")
    assert run(make_short_rollout_config(logging={"checkpoint_every_frames": 20}), run_dir)
    texts = read_warnings(run_dir)
    assert len(texts) == 3
    assert texts[-1].endswith("back to the agent of 000000040")
    # The other updates of that rollout are left out, because its actions are of a discarded agent.
    assert list_records(run_dir, "end")[0]["updates"] == first_update + 18
    assert list_records(run_dir, "end")[0]["frames"] == 120
    later_state, good_state = (
        checkpoint.load_checkpoint(run_dir.checkpoints_dir / name).state for name in ("000000060", "000000040")
    )
    assert later_state["counters"]["skipped_in_a_row"] == 0
    differences = compare_trees(later_state["agent"]["tensors"], good_state["agent"]["tensors"])
    expected_differences = {"/reward_normalizer.returns: other numbers", "/bonus_returns.returns: other numbers"}
    assert set(differences) <= expected_differences, (
        "and so it was saved; but episodes go on with what they have been paid"
    )


@pytest.mark.quality("S3")
def test_repeated_non_finite_updates_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_nan_advantages(monkeypatch, range(14, 1000))
    with pytest.raises(DivergedError):
        run(make_short_rollout_config(), RunDir(tmp_path / "run"))


class UnrestorableEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Environment that cannot save its state, such as those of EnvPool."""

    def snapshot(self) -> Any:
        from manyview.envs import NotRestorable

        raise NotRestorable("it cannot")


def make_unrestorable_env() -> gym.Env[Any, Any]:
    from manyview.envs.toy import HiddenGoal

    return UnrestorableEnv(HiddenGoal())


def test_unrestorable_envs_resume_at_a_rollout_boundary_with_fresh_episodes(tmp_path: Path) -> None:
    config, run_dir = (
        make_short_rollout_config(task="tests.unit.training.test_on_policy:make_unrestorable_env"),
        RunDir(tmp_path / "run"),
    )
    runner = Runner(config, run_dir)
    advance_to(runner, 70)
    abandon_runner(runner)
    manifest = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)[1].manifest
    assert manifest["resume_mode"] == "fresh episode"
    assert run(config, run_dir)
    (resumed,) = list_records(run_dir, "resume")
    assert (resumed["frames"], resumed["resume_mode"]) == (60, "fresh episode")
    assert list_records(run_dir, "end")[0]["frames"] == 120


def test_fresh_episodes_have_the_seeds_of_their_rollout_and_zero_returns() -> None:
    config = make_short_rollout_config(task="tests.unit.training.test_on_policy:make_unrestorable_env")
    trainer, resumed = OnPolicyTrainer(config), OnPolicyTrainer(config)
    for _ in range(3):
        fill_rollout(trainer)
        while not trainer.can_checkpoint:
            trainer.advance()
    agents: list[Any] = [trainer.agent, resumed.agent]
    assert agents[0].bonus_returns.returns.abs().sum() > 0
    resumed.load_state(trainer.get_state(), lambda: None)
    assert not agents[1].bonus_returns.returns.any()
    assert not agents[1].reward_normalizer.returns.any()
    reference = make_vector(config.task, 4)
    observation, _ = reference.reset(seed=derive_seed(config.seed, "episodes", 3))
    views, _ = to_batched_tensors(observation, trainer.shapes.cameras, trainer.device)
    assert torch.equal(resumed.rollout.frames[0], views)
    for resource in (trainer, resumed, reference):
        resource.close()


def test_continuous_agents_name_the_agent_for_discrete_actions() -> None:
    from manyview.training.off_policy import OffPolicyTrainer

    with pytest.raises(ValueError, match="Use ppo for discrete actions"):
        OffPolicyTrainer(make_short_config("drqv2+mem", task="toy/hidden_goal"))


@pytest.mark.parametrize(
    ("method", "has_next"),
    [("ppo+ride", True), ("ppo+icm", True), ("ppo+pixel+mem", True), ("ppo+mem", False), ("ppo+rnd", False)],
)
def test_minibatches_hold_next_views_only_for_a_bonus_that_uses_them(method: str, has_next: bool) -> None:
    trainer = OnPolicyTrainer(make_short_rollout_config(method))
    while trainer.get_last_batch() is None:
        trainer.advance()
    batch = trainer._last_batch
    assert batch is not None
    assert (batch.next_views is not None) == has_next
    trainer.close()


@pytest.mark.parametrize(("representation", "count"), [("mem", 1), ("pixel", 0), ("curl", 0)])
def test_a_second_view_of_a_game_does_not_depend_on_the_bonus(representation: str, count: int) -> None:
    for bonus in filter(lambda name: "rollout" in BONUSES[name].data, BONUSES.list_names()):
        config = make_short_rollout_config(f"ppo+{representation}+{bonus}", task="procgen/bigfish")
        views = factory.build_derived_views(config, [View("screen", 64, 64)])
        assert len(views.augmentations) == count, bonus


def test_an_unsupported_derived_view_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="grayscale needs RGB images of a single frame: expected 3 channels, got 9"):
        OnPolicyTrainer(
            make_short_rollout_config(
                "ppo+none",
                task="tests.support.large_envs:make_large_image_env",
                env={"augmented_view": "grayscale", "frame_stack": 3},
            )
        )


def test_mem_on_a_game_without_a_second_view_of_the_paper_is_refused() -> None:
    config = make_short_rollout_config("ppo+mem", task="procgen/maze")
    with pytest.raises(ValueError, match="no second view for procgen/maze: MEM needs several views"):
        factory.build_derived_views(config, ())
    assert not factory.build_derived_views(
        apply_overrides(config, {"env": {"augmented_view": "none"}}), ()
    ).augmentations
    assert not factory.build_derived_views(make_short_rollout_config("ppo+none", task="procgen/maze"), ()).augmentations


def test_a_window_of_at_most_k_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"agent\.window must be more than bonus\.k, got 3 and 3"):
        make_short_rollout_config("ppo+mem", agent={"neighbors": "pooled", "window": 3})
    make_short_rollout_config("ppo+none", agent={"neighbors": "pooled", "window": 3})


def test_more_environments_than_a_checkpoint_can_hold_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_JSON_VALUES", 100)
    with pytest.raises(OSError, match=r"values of state\.json, .* Lower rollout\.envs"):
        OnPolicyTrainer(make_short_rollout_config(rollout={"envs": 100}))


def test_a_rollout_of_at_most_k_steps_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"rollout\.steps must be more than bonus\.k, got 3 and 3: .*pooled searches"):
        make_short_rollout_config("ppo+mem", rollout={"steps": 3})
    make_short_rollout_config("ppo+mem", rollout={"steps": 4})
    make_short_rollout_config("ppo+none", rollout={"steps": 3})
    make_short_rollout_config("ppo+mem", rollout={"steps": 3}, agent={"neighbors": "pooled"})
    with pytest.raises(ValueError, match=r"rollout\.envs times .* must be more than bonus\.k, got 3, 1 and 3"):
        make_short_rollout_config("ppo+re3", rollout={"envs": 3, "steps": 1}, agent={"neighbors": "pooled"})


def test_evaluations_change_their_seed_only_on_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def record_seed(*args: Any, seed: int, **kwargs: Any) -> Evaluation:
        seeds.append(seed)
        return evaluate_policy(*args, seed=seed, **kwargs)

    monkeypatch.setattr(evaluation_module, "evaluate_policy", record_seed)
    runner = Runner(make_short_rollout_config("ppo+none"), RunDir(tmp_path / "run"))
    for levels in (["all"], ["train", "test"]):
        runner.evaluator.envs = dict.fromkeys(levels, next(iter(runner.evaluator.envs.values())))
        for frames in (20, 40):
            runner.trainer.counters.frames = frames
            runner.evaluator.evaluate(StopRequest())
    runner.close()
    assert seeds[0] == seeds[1] == runner.config.seed
    # Equal for training and test levels, new at the next evaluation.
    assert seeds[2] == seeds[3] != seeds[4] == seeds[5]


def test_sequential_episodes_are_seeded_once(tmp_path: Path) -> None:
    runner = Runner(make_short_rollout_config("ppo+none"), RunDir(tmp_path / "run"))
    trainer, env = runner.trainer, SeedRecorder(next(iter(runner.evaluator.envs.values())))
    for is_sequential in (False, True):
        evaluate_policy(trainer.agent, env, trainer.shapes, episodes=3, seed=7, step=0, sequential=is_sequential)
    runner.close()
    seeds = [derive_seed(7, "evaluation", number) for number in range(3)]
    assert env.reset_seeds == [*seeds, seeds[0], None, None]


def test_videos_are_due_for_each_hundredth_of_a_run_and_its_end(tmp_path: Path) -> None:
    runner = Runner(make_short_rollout_config("ppo+none", evaluation={"video": True}), RunDir(tmp_path / "run"))
    runner.config = apply_overrides(runner.config, {"schedule": {"frames": 10_000}})
    runner.trainer.config = runner.config
    runner.run_dir.videos_dir.mkdir(exist_ok=True)
    (runner.run_dir.videos_dir / "the best one.mp4").touch()
    is_due = []
    for frames in (*range(0, 400, 50), 10_000, 10_020):
        runner.trainer.counters.frames = frames
        is_due.append(runner.evaluator.should_record_video)
        if is_due[-1]:
            (runner.run_dir.videos_dir / f"{frames:09d}.mp4").touch()
    runner.close()
    assert is_due == [True, False, True, False, True, False, True, False, True, True]
