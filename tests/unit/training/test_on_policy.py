"""Algorithm 2: what a rollout holds, what is resumed, and what is refused."""

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

STEPS_OF_A_ROLLOUT, FRAMES_OF_A_ROLLOUT = 5, 20


def to_a_full_rollout(trainer: OnPolicyTrainer) -> None:
    while not trainer.rollout.is_full:
        trainer.advance()


def kinds(folder: RunDir, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(folder.metrics_file) if record["kind"] == kind]


def test_a_rollout_holds_what_the_environments_did() -> None:
    """The same actions in environments with the same seeds give the same pictures, rewards and ends."""
    config = make_short_rollout_config(rollout={"steps": 25})
    trainer = OnPolicyTrainer(config)
    first = trainer.rollout.frames[0].clone()
    to_a_full_rollout(trainer)
    rollout = trainer.rollout
    assert torch.equal(rollout.frames[0], first)
    again = make_vector(config.task, 4)
    again.reset(seed=derive_seed(config.seed, "episodes", 0))
    for step in range(25):
        observation, reward, terminated, truncated, _ = again.step(rollout.action[step].numpy())
        shown = np.stack([observation[view.name].transpose(0, 3, 1, 2) for view in trainer.shapes.cameras], 1)
        assert np.array_equal(rollout.frames[step + 1], shown)
        assert np.array_equal(rollout.reward_ext[step], reward)
        assert np.array_equal(rollout.terminated[step], terminated)
        assert np.array_equal(rollout.truncated[step], truncated)
    again.close()
    assert rollout.truncated.sum() == 8
    assert (trainer.counters.steps, trainer.counters.frames) == (100, 100)
    assert trainer.counters.episodes == 4 + 8, "four began, and two of each ended"
    trainer.close()


def test_where_the_clock_ran_out_the_last_state_is_valued_as_the_agent_would_have_seen_it() -> None:
    """Of the second rollout: a twin of the environments says what was seen last, and it is derived by this rollout."""
    config = make_short_rollout_config(rollout={"steps": 10}, env={"augmented_view": "crop"}, agent={"epochs": 1})
    trainer = OnPolicyTrainer(config)
    twin = make_vector(config.task, 4)
    twin.reset(seed=derive_seed(config.seed, "episodes", 0))
    for _ in range(2):
        while trainer.rollout.is_full:
            trainer.advance()
        to_a_full_rollout(trainer)
        rollout = trainer.rollout
        for step in range(10):
            *_, info = twin.step(rollout.action[step].numpy())
    twin.close()
    assert rollout.truncated[9].all()
    views, mask = to_batched_tensors(
        stack_observations(list(info["final_obs"])), trainer.shapes.cameras, trainer.device
    )
    places = torch.arange(4)
    seen = trainer.shapes.derived_views(views, mask, draw_ids=torch.full_like(places, 10), env_ids=places)
    assert seen[0].shape[1] == 3, "two cameras and a crop"
    assert torch.equal(rollout.final_value[9], trainer.agent.predict_values(*seen))  # which has not learned since
    assert torch.equal(rollout.compute_next_value()[9], rollout.final_value[9])
    trainer.close()


@pytest.mark.parametrize(("unit", "elapsed"), [("rollouts", [0, 1, 2]), ("agent_steps", [20, 40, 60])])
def test_beta_falls_by_the_unit_it_is_counted_in(tmp_path: Path, unit: str, elapsed: list[int]) -> None:
    folder = RunDir(tmp_path / "run")
    bonus = {"beta0": 0.5, "beta_decay": 0.1, "unit": unit}
    assert run(make_short_rollout_config(bonus=bonus, schedule={"frames": 60}), folder)
    assert [record["beta"] for record in kinds(folder, "train")] == pytest.approx([0.5 * 0.9**n for n in elapsed])


def test_every_row_is_learned_from_once_an_epoch() -> None:
    trainer = OnPolicyTrainer(make_short_rollout_config())
    to_a_full_rollout(trainer)
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
    folder = RunDir(tmp_path / "run")
    assert run(make_short_rollout_config(method), folder)
    (end,) = kinds(folder, "end")
    assert (end["frames"], end["updates"], end["state"]) == (120, 36, "finished")
    train = kinds(folder, "train")
    assert [record["updates"] for record in train] == [6, 12, 18, 24, 30, 36], "one record a rollout"
    assert not list(folder.path.glob("replay/*")), "nothing is kept for later"


def test_numbers_as_actions_work_too(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    assert run(make_short_rollout_config(task="toy/hidden_goal_continuous"), folder)


@pytest.mark.quality("D1")
@pytest.mark.parametrize("method", ["ppo+mem", "ppo+ride"])
@pytest.mark.parametrize("at", [24, 70, 100])
def test_a_run_that_dies_anywhere_ends_as_if_it_had_not(tmp_path: Path, method: str, at: int) -> None:
    config, whole, folder = make_short_rollout_config(method), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, whole)
    session = Runner(config, folder)
    advance_to(session, at)
    session.advance()
    abandon_runner(session)
    assert run(config, folder)
    assert compare_runs(whole, folder) == []


@pytest.mark.quality("D6")
@pytest.mark.parametrize("extra", [1, 3, 6, 8])
def test_a_stop_in_the_middle_of_a_rollout_or_its_updates_keeps_the_edge_before(tmp_path: Path, extra: int) -> None:
    config, whole, folder = make_short_rollout_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, whole)
    with open_runner(config, folder, frames=40) as session:
        trainer: Any = session.trainer
        while not trainer.can_checkpoint:
            session.advance()
        for _ in range(extra):
            session.advance()
        assert not trainer.can_checkpoint
        session.save(checkpoint.format_checkpoint_name(trainer.checkpoint_frames, stop=True))
    assert checkpoint.load_newest_checkpoint(folder.checkpoints_dir)[0].name in ("000000040", "000000040.stop")
    assert run(config, folder)
    (resumed,) = kinds(folder, "resume")
    assert (resumed["frames"], resumed["resume_mode"]) == (40, "strict")
    newest = [
        checkpoint.load_checkpoint(checkpoint.list_checkpoints(run.checkpoints_dir)[0]).state["agent"]["tensors"]
        for run in (whole, folder)
    ]
    for name, tensor in newest[0].items():
        assert torch.equal(tensor, newest[1][name]), name


@pytest.mark.quality("D3")
def test_a_damaged_checkpoint_is_found_out_and_the_one_before_it_used(tmp_path: Path) -> None:
    config, whole, folder = make_short_rollout_config(), RunDir(tmp_path / "whole"), RunDir(tmp_path / "run")
    run(config, whole)
    session = Runner(config, folder)
    advance_to(session, 90)
    abandon_runner(session)
    damaged = checkpoint.list_checkpoints(folder.checkpoints_dir)[0] / "state.safetensors"
    content = damaged.read_bytes()
    for place in np.linspace(0, len(content) - 1, 200).astype(int):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.load_checkpoint(damaged.parent)
    damaged.write_bytes(content[:-1])
    assert run(config, folder)
    assert any("is not used" in text for text in read_warnings(folder))
    tensors = [
        checkpoint.load_newest_checkpoint(run.checkpoints_dir)[1].state["agent"]["tensors"] for run in (whole, folder)
    ]
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


class Poisoned(gym.Wrapper[Any, Any, Any, Any]):
    """Pays something that is no number in its eighth step."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, *rest = self.env.step(action)
        return observation, float("nan") if self.steps == 8 else reward, *rest


def poisoned() -> gym.Env[Any, Any]:
    from manyview.envs.toy import HiddenGoal

    return Poisoned(HiddenGoal())


@pytest.mark.quality("S1")
def test_a_reward_that_is_no_number_is_refused_in_the_same_step_and_enters_nothing() -> None:
    trainer = OnPolicyTrainer(
        make_short_rollout_config(task="tests.unit.training.test_on_policy:poisoned", rollout={"steps": 12})
    )
    for _ in range(7):
        trainer.advance()
    before = trainer.rollout.reward_ext.clone()
    with pytest.raises(ContractError, match=r"poisoned\[0\].*reward.*nan"):
        trainer.advance()
    assert trainer.rollout.length == 7
    assert torch.equal(trainer.rollout.reward_ext, before)
    trainer.close()


def poisoning(monkeypatch: pytest.MonkeyPatch, updates: range) -> None:
    """Advantages that are not numbers in these updates, made or not."""
    learn, made = OnPolicyTrainer._update_minibatch, [0]

    def poisoned_learn(self: OnPolicyTrainer) -> Any:
        kept = self.rollout.advantage.clone()
        if made[0] in updates:
            self.rollout.advantage.fill_(torch.nan)
        made[0] += 1
        try:
            return learn(self)
        finally:
            self.rollout.advantage.copy_(kept)

    monkeypatch.setattr(OnPolicyTrainer, "_update_minibatch", poisoned_learn)


@pytest.mark.quality("S3")
@pytest.mark.parametrize("first", [14, 15])  # 15 to 17 are the last of their rollout
def test_bad_updates_are_left_out_and_three_bring_back_the_last_good_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    poisoning(monkeypatch, range(first, first + 3))
    monkeypatch.setattr("manyview.training.checkpoint_manager.MAX_CHECKPOINTS", 9)
    folder = RunDir(tmp_path / "run")
    assert run(make_short_rollout_config(logging={"checkpoint_every_frames": 20}), folder)
    texts = read_warnings(folder)
    assert len(texts) == 3
    assert texts[-1].endswith("back to the agent of 000000040")
    # The rest of that rollout was acted by an agent that is no more.
    assert kinds(folder, "end")[0]["updates"] == first + 18
    assert kinds(folder, "end")[0]["frames"] == 120
    after, good = (
        checkpoint.load_checkpoint(folder.checkpoints_dir / name).state for name in ("000000060", "000000040")
    )
    assert after["counters"]["skipped_in_a_row"] == 0
    changed = compare_trees(after["agent"]["tensors"], good["agent"]["tensors"])
    of_episodes = {"/reward_normalizer.returns: other numbers", "/bonus_returns.returns: other numbers"}
    assert set(changed) <= of_episodes, "and so it was saved; but episodes go on with what they have been paid"


@pytest.mark.quality("S3")
def test_updates_that_stay_bad_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoning(monkeypatch, range(14, 1000))
    with pytest.raises(DivergedError):
        run(make_short_rollout_config(), RunDir(tmp_path / "run"))


class Forgetful(gym.Wrapper[Any, Any, Any, Any]):
    """A simulator that keeps its state to itself, as EnvPool does."""

    def snapshot(self) -> Any:
        from manyview.envs import NotRestorable

        raise NotRestorable("it cannot")


def forgetful() -> gym.Env[Any, Any]:
    from manyview.envs.toy import HiddenGoal

    return Forgetful(HiddenGoal())


def test_what_cannot_be_restored_goes_on_at_an_edge_with_fresh_episodes(tmp_path: Path) -> None:
    config, folder = (
        make_short_rollout_config(task="tests.unit.training.test_on_policy:forgetful"),
        RunDir(tmp_path / "run"),
    )
    session = Runner(config, folder)
    advance_to(session, 70)
    abandon_runner(session)
    manifest = checkpoint.load_newest_checkpoint(folder.checkpoints_dir)[1].manifest
    assert manifest["resume_mode"] == "fresh episode"
    assert run(config, folder)
    (resumed,) = kinds(folder, "resume")
    assert (resumed["frames"], resumed["resume_mode"]) == (60, "fresh episode")
    assert kinds(folder, "end")[0]["frames"] == 120


def test_fresh_episodes_are_those_of_their_rollout_and_have_been_paid_nothing() -> None:
    config = make_short_rollout_config(task="tests.unit.training.test_on_policy:forgetful")
    first, again = OnPolicyTrainer(config), OnPolicyTrainer(config)
    for _ in range(3):
        to_a_full_rollout(first)
        while not first.can_checkpoint:
            first.advance()
    agents: list[Any] = [first.agent, again.agent]
    assert agents[0].bonus_returns.returns.abs().sum() > 0
    again.load_state(first.get_state(), lambda: None)
    assert not agents[1].bonus_returns.returns.any()
    assert not agents[1].reward_normalizer.returns.any()
    twin = make_vector(config.task, 4)
    shown, _ = twin.reset(seed=derive_seed(config.seed, "episodes", 3))
    views, _ = to_batched_tensors(shown, first.shapes.cameras, first.device)
    assert torch.equal(again.rollout.frames[0], views)
    for closed in (first, again, twin):
        closed.close()


def test_continuous_agents_say_who_takes_numbered_actions() -> None:
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


def test_a_view_that_cannot_be_made_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="grayscale needs RGB images of a single frame: expected 3 channels, got 9"):
        OnPolicyTrainer(
            make_short_rollout_config(
                "ppo+none",
                task="tests.support.large_envs:make_large_image_env",
                env={"augmented_view": "grayscale", "frame_stack": 3},
            )
        )


def test_mem_on_a_game_without_a_second_view_of_the_paper_asks_for_one() -> None:
    config = make_short_rollout_config("ppo+mem", task="procgen/maze")
    with pytest.raises(ValueError, match="no second view for procgen/maze: MEM needs several views"):
        factory.build_derived_views(config, ())
    assert not factory.build_derived_views(
        apply_overrides(config, {"env": {"augmented_view": "none"}}), ()
    ).augmentations
    assert not factory.build_derived_views(make_short_rollout_config("ppo+none", task="procgen/maze"), ()).augmentations


def test_a_window_without_room_for_the_neighbours_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"agent\.window must be more than bonus\.k, got 3 and 3"):
        make_short_rollout_config("ppo+mem", agent={"neighbors": "pooled", "window": 3})
    make_short_rollout_config("ppo+none", agent={"neighbors": "pooled", "window": 3})


def test_more_environments_than_a_checkpoint_can_hold_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_JSON_VALUES", 100)
    with pytest.raises(OSError, match=r"values of state\.json, .* Lower rollout\.envs"):
        OnPolicyTrainer(make_short_rollout_config(rollout={"envs": 100}))


def test_a_rollout_without_room_for_the_neighbours_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"rollout\.steps must be more than bonus\.k, got 3 and 3: .*pooled searches"):
        make_short_rollout_config("ppo+mem", rollout={"steps": 3})
    make_short_rollout_config("ppo+mem", rollout={"steps": 4})
    make_short_rollout_config("ppo+none", rollout={"steps": 3})
    make_short_rollout_config("ppo+mem", rollout={"steps": 3}, agent={"neighbors": "pooled"})
    with pytest.raises(ValueError, match=r"rollout\.envs times .* must be more than bonus\.k, got 3, 1 and 3"):
        make_short_rollout_config("ppo+re3", rollout={"envs": 3, "steps": 1}, agent={"neighbors": "pooled"})


def test_every_evaluation_on_levels_sees_others_and_elsewhere_the_same_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def remembered(*given: Any, seed: int, **further: Any) -> Evaluation:
        seeds.append(seed)
        return evaluate_policy(*given, seed=seed, **further)

    monkeypatch.setattr(evaluation_module, "evaluate_policy", remembered)
    session = Runner(make_short_rollout_config("ppo+none"), RunDir(tmp_path / "run"))
    for kinds in (["all"], ["train", "test"]):
        session.evaluator.envs = dict.fromkeys(kinds, next(iter(session.evaluator.envs.values())))
        for frames in (20, 40):
            session.trainer.counters.frames = frames
            session.evaluator.evaluate(StopRequest())
    session.close()
    assert seeds[0] == seeds[1] == session.config.seed
    assert seeds[2] == seeds[3] != seeds[4] == seeds[5]  # training and test levels alike, other ones the next time


def test_episodes_in_sequence_begin_by_one_seed(tmp_path: Path) -> None:
    session = Runner(make_short_rollout_config("ppo+none"), RunDir(tmp_path / "run"))
    trainer, env = session.trainer, SeedRecorder(next(iter(session.evaluator.envs.values())))
    for in_sequence in (False, True):
        evaluate_policy(trainer.agent, env, trainer.shapes, episodes=3, seed=7, step=0, sequential=in_sequence)
    session.close()
    seeds = [derive_seed(7, "evaluation", number) for number in range(3)]
    assert env.reset_seeds == [*seeds, seeds[0], None, None]


def test_a_film_for_each_hundredth_of_a_run_and_of_its_end(tmp_path: Path) -> None:
    session = Runner(make_short_rollout_config("ppo+none", evaluation={"video": True}), RunDir(tmp_path / "run"))
    session.config = apply_overrides(session.config, {"schedule": {"frames": 10_000}})
    session.trainer.config = session.config
    session.run_dir.videos_dir.mkdir(exist_ok=True)
    (session.run_dir.videos_dir / "the best one.mp4").touch()
    due = []
    for frames in (*range(0, 400, 50), 10_000, 10_020):
        session.trainer.counters.frames = frames
        due.append(session.evaluator.should_record_video)
        if due[-1]:
            (session.run_dir.videos_dir / f"{frames:09d}.mp4").touch()
    session.close()
    assert due == [True, False, True, False, True, False, True, False, True, True]
