"""Dry runs: estimates of memory, parameters and duration."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyview.data import ReplayBuffer
from manyview.training import dry_run, factory
from manyview.training import trainer as trainer_module
from manyview.training.dry_run import RunEstimate, estimate_run, find_obstacle, format_estimate
from manyview.training.memory_estimate import estimate_rollout_state_bytes
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.on_policy import OnPolicyTrainer
from manyview.training.run_dir import RunDir
from tests.support.runs import make_short_config, make_short_rollout_config


@pytest.mark.quality("E4")
@pytest.mark.parametrize(
    ("method", "bonus", "feature_bytes"),
    [
        ("drqv2+mem", {}, 0),
        ("drqv2+mem", {"search": "buffer", "bank": 0}, 3 * 4 * 4),  # two views and their mean, of 4 float32
        ("drqv2+re3", {}, 2 * 4 * 4),
        ("drqv2+rnd", {}, 0),
    ],
)
def test_the_estimated_replay_and_parameters_are_those_of_the_run(
    method: str, bonus: dict[str, Any], feature_bytes: int
) -> None:
    config = make_short_config(method, replay={"capacity": 3_000}, bonus=bonus)
    estimate, trainer = estimate_run(config), OffPolicyTrainer(config)
    assert estimate.data_bytes == trainer.replay.nbytes
    features = trainer.replay.features
    assert (0 if features is None else features.nbytes) == 3_000 * feature_bytes
    assert estimate.parameters == sum(parameter.numel() for parameter in trainer.agent.parameters())


def test_hours_follow_from_steps_updates_and_evaluations() -> None:
    config = make_short_config(schedule={"frames": 1_000, "seed_frames": 100, "update_every_steps": 3})
    estimate = estimate_run(config)
    assert estimate.updates == 300
    training_s = 1_000 * estimate.step_s + 300 * estimate.update_s
    assert training_s < estimate.seconds == pytest.approx(training_s + (1 + 1_000 / 30) * estimate.evaluation_s)


def test_an_estimate_leaves_no_replay_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("replay") / "inside"
    estimate_run(make_short_config(replay={"directory": str(directory)}))
    assert not directory.exists()


def test_the_memory_of_a_long_rollout_is_estimated_from_a_short_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trainer_module,
        "estimate_update_bytes",
        lambda agent, config, shapes: estimate_rollout_state_bytes(agent, config, shapes),
    )
    config = make_short_rollout_config(rollout={"envs": 4, "steps": 20_000})
    trainer = OnPolicyTrainer(config)
    assert estimate_run(config).update_bytes == estimate_rollout_state_bytes(trainer.agent, config, trainer.shapes)


def test_a_rollout_that_does_not_fit_is_an_obstacle() -> None:
    estimate = estimate_run(make_short_rollout_config(rollout={"envs": 4, "steps": 8}))
    assert find_obstacle(estimate) is None
    large_estimate = replace(estimate, data_bytes=10**15)
    obstacle = find_obstacle(large_estimate)
    assert obstacle is not None
    assert obstacle.startswith("a rollout of 4 environments times 8 steps needs 1000000.")


def test_a_trial_of_many_environments_has_enough_states_for_k_neighbors() -> None:
    assert estimate_run(make_short_rollout_config(rollout={"envs": 30, "steps": 10}, bonus={"k": 7})).step_s > 0


def test_without_evaluations_an_estimate_makes_no_environment_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "make_env", lambda *_, **__: pytest.fail("there is one robot"))
    assert estimate_run(make_short_rollout_config(evaluation={"episodes": 0})).evaluation_s == 0


def time_search(monkeypatch: pytest.MonkeyPatch, *, steps: int, free_bytes: int, **changes: Any) -> tuple[float, int]:
    """Return the estimated time of a search of 1 µs per row, and the timed rows."""
    config = make_short_config("drqv2+re3", **changes)
    lengths: list[int] = []

    def search(replay: ReplayBuffer, indices: Any, *_: object, horizon: int, **__: object) -> None:
        assert replay.features is not None
        assert replay.features.shape == (horizon, 2, 4)
        assert replay.features.std() > 0.9, "equal features would be read from the cache"
        assert len(indices) == config.replay.batch_size
        assert indices.max() < horizon - 1
        lengths.append(horizon)

    def time_call(work: Any) -> float:
        work()
        return 1e-6 * lengths[-1]

    monkeypatch.setattr(dry_run, "_time_call", time_call)
    monkeypatch.setattr(dry_run, "get_free_memory_bytes", lambda: free_bytes)
    agent = SimpleNamespace(neighbor_search=search, bonus=SimpleNamespace(feature_shape=(2, 4)))
    shapes: Any = SimpleNamespace(views=[SimpleNamespace(name="side"), SimpleNamespace(name="back")])
    return dry_run._time_search(agent, config, shapes, steps=steps), lengths[0]


@pytest.mark.parametrize(("capacity", "seconds"), [(200, 2e-4), (9_000, 5e-3)])
@pytest.mark.parametrize(("free_rows", "fits"), [(100_000, True), (150, False)])
def test_a_search_is_timed_in_a_replay_buffer_as_full_as_the_run_leaves_it(
    monkeypatch: pytest.MonkeyPatch, capacity: int, seconds: float, free_rows: int, fits: bool
) -> None:
    """With too little memory, fewer rows are timed and the time is scaled."""
    search_s, rows = time_search(
        monkeypatch,
        steps=5_000,
        free_bytes=4 * free_rows * 2 * 4 * 4,  # a quarter of it for rows of 2 groups of 4 float32
        replay={"capacity": capacity},
    )
    assert rows == (min(capacity, 5_000) if fits else free_rows)
    assert search_s == pytest.approx(seconds)


@pytest.mark.parametrize(("capacity", "seed_frames"), [(5_000, 10), (400, 10), (400, 600)])
def test_the_duration_counts_the_search_of_every_update(capacity: int, seed_frames: int) -> None:
    config = make_short_config(
        "drqv2+re3",
        schedule={"frames": 1_000, "seed_frames": seed_frames, "update_every_steps": 1},
        replay={"capacity": capacity},
    )
    estimate = RunEstimate(config, ("side",), 1, 0, 0, None, None, step_s=0.0, update_s=0.0, evaluation_s=0.0)
    rows_per_search = [min(step, capacity) for step in range(seed_frames, 1_000)]
    final_rows = min(1_000, capacity)
    assert estimate.seconds == 0
    assert replace(estimate, search_s=final_rows * 1e-6).seconds == pytest.approx(1e-6 * sum(rows_per_search), rel=2e-3)


def test_the_estimate_shows_the_search_of_a_bonus_that_stores_features(tmp_path: Path) -> None:
    for method, is_shown in (("drqv2+re3", True), ("drqv2+mem", False)):
        estimate = estimate_run(make_short_config(method))
        assert (estimate.search_s > 0) == is_shown
        assert any(line.startswith("search time") for line in format_estimate(estimate, RunDir(tmp_path))) == is_shown
