"""The study on the simulator's state: batches, bonus, choice of the winner and test."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from experiments.state import (
    AGENTS,
    BASE,
    CHANGES,
    CUP,
    FINAL_ARM,
    PENDULUM,
    SEEDS,
    TUNING_ARMS,
    Arm,
    list_final_rows,
    list_final_runs,
    make_config,
)
from experiments.state.training import StateBonus, StateReplay, StateRun, train_run
from experiments.tables import Row, TableRun, flatten
from manyview.config.overrides import to_plain
from manyview.config.presets import apply_sections, load_preset
from manyview.methods import MEMBonusConfig

Scores = dict[tuple[str, str], list[float]]


def fill_replay() -> StateReplay:
    """Episodes of 5, 7 and 4 steps."""
    rng, replay = np.random.default_rng(0), StateReplay(40, 3, 1)
    for episode, length in enumerate((5, 7, 4)):
        states = rng.normal(size=(length + 1, 3)).astype(np.float32)
        for state, next_state in pairwise(states):
            replay.add(state, np.array([rng.normal()], np.float32), rng.normal(), next_state, episode=episode)
    return replay


def make_runs(scores: Scores, *, stage: Any = "tuning") -> list[TableRun]:
    return [
        TableRun(tuple(Row("state", variant, task, "", "", "", "", seed, at, 1.0, "return", value, "")
                       for at, value in ((1.0, 999.0), (2.0, score), (3.0, score - 3), (4.0, score + 3))))
        for (variant, task), values in scores.items()
        for seed, score in zip(SEEDS[stage], values, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_batch_holds_n_step_returns_that_end_with_their_episode(n_step: int) -> None:
    replay = fill_replay()
    batch = replay.sample(300, np.random.default_rng(1), n_step=n_step, discount=0.9)
    ends = np.repeat([5, 12, 16], [5, 7, 4])
    assert set(batch.indices.tolist()) == set(range(16 - n_step + 1))
    for place, row in enumerate(batch.indices.tolist()):
        stop = min(row + n_step, int(ends[row]))
        expected = sum(0.9**ahead * float(replay.rewards[row + ahead]) for ahead in range(stop - row))
        assert batch.reward_ext[place].item() == pytest.approx(expected, rel=1e-5)
        assert batch.discount[place].item() == pytest.approx(0.9 ** (stop - row), rel=1e-5)
        np.testing.assert_array_equal(batch.views[place], replay.states[row])
        np.testing.assert_array_equal(batch.next_views[place], replay.next_states[stop - 1])
        assert batch.next_indices[place].item() == (-1 if stop == ends[row] else stop)


@pytest.mark.parametrize("rewarded", ["current", "next"])
def test_the_bonus_is_the_centered_log_of_the_distance_to_the_kth_state(rewarded: Any) -> None:
    replay = fill_replay()
    config = MEMBonusConfig(k=2, bank=6, rewarded_state=rewarded)
    bonus, drawn = StateBonus(replay, np.random.default_rng(3), config), np.random.default_rng(3).integers(0, 16, 6)
    batch = replay.sample(40, np.random.default_rng(1), n_step=3, discount=0.9)
    states, rows = (batch.next_views, batch.next_indices) if rewarded == "next" else (batch.views, batch.indices)
    distances = []
    for place, (state, row) in enumerate(zip(states.double().numpy(), rows.tolist(), strict=True)):
        others = [
            (states[other].double().numpy(), rows[other].item())
            for other in range(len(rows))
            if other != place and (row < 0 or rows[other].item() != row)
        ]
        others += [(replay.states[other].astype(np.float64), other) for other in drawn if other != row]
        distances.append(sorted(float(np.linalg.norm(state - other)) for other, _ in others)[1])
    raw = np.log1p(distances)
    reward = bonus.compute(batch, None, torch.zeros(40))
    np.testing.assert_allclose(reward.numpy(), (raw - raw.mean()) / raw.std(), atol=1e-4)


@pytest.mark.parametrize("arm", TUNING_ARMS, ids=lambda arm: arm.variant)
def test_an_arm_differs_from_the_base_in_its_own_settings_alone(arm: Arm) -> None:
    for task in arm.tasks:
        base, changed = (flatten(to_plain(make_config(which, task, 101))) for which in (BASE, arm))
        if AGENTS[arm.agent][0] == "sac":
            base, changed = (
                {k: v for k, v in part.items() if not k.startswith(("agent.", "method"))} for part in (base, changed)
            )
        different = {name for name in base.keys() | changed.keys() if base.get(name) != changed.get(name)}
        wanted = {name.replace(".all.", ".") for change in arm.changes for name in flatten(CHANGES[change])}
        assert different == wanted | ({"replay.n_step"} if arm.variant == "sac one step" else set())


def test_the_noise_decays_from_the_first_update_on() -> None:
    config = make_config(Arm("", changes=("noise warm-up",)), CUP, 101)
    assert config.env.action_repeat is not None
    assert config.agent.std_warmup_steps == config.schedule.seed_frames // config.env.action_repeat


def test_the_final_arm_is_the_preset_without_images() -> None:
    preset = flatten(to_plain(load_preset("cpu", task=PENDULUM, method="sac+pixel+mem", seed=1)))
    config = flatten(to_plain(make_config(FINAL_ARM, PENDULUM, 1)))
    assert {name for name in config if config[name] != preset[name]} == {
        *("schedule.frames", "replay.augmentation", "bonus.beta0"),
        *("evaluation.every_frames", "evaluation.video"),
    }
    assert (config["replay.batch_size"], config["schedule.update_every_steps"]) == (256, 1)


def test_the_final_runs_are_new_seeds_of_both_tasks() -> None:
    runs = list_final_runs()
    assert len(runs) == len({*runs}) == 10
    assert not {seed for _, seed in runs} & {*SEEDS["tuning"]}


def test_the_bar_counts_seeds() -> None:
    scores: Scores = {("preset", CUP): [801, 802, 803, 804, 799], ("preset", PENDULUM): [700, 699, 1, 2, 3]}
    rows = list(list_final_rows([*make_runs(scores, stage="final"), *make_runs({("base", CUP): [900] * 3})]))
    assert [row[2:] for row in rows] == [("4", "5"), ("1", "5")]


@pytest.mark.simulator
@pytest.mark.parametrize(("arm", "task"), [(BASE, CUP), (FINAL_ARM, PENDULUM)], ids=["base", "preset"])
def test_a_short_run_learns_and_gives_rows(arm: Arm, task: str) -> None:
    short: dict[str, Any] = {
        "schedule": {"frames": 400, "random_steps": 50, "seed_frames": 320},
        "evaluation": {"every_frames": 400, "episodes": 1},
    }
    config = apply_sections(make_config(arm, task, 101), short)
    one, other = (train_run("state", arm.variant, config) for _ in range(2))
    assert [(row.metric, row.value) for row in one] == [(row.metric, row.value) for row in other]
    assert {"return", "value", "reward_int", "rewarded_episodes"} <= {row.metric for row in one}
    assert one[0].bonus == ("none" if task == CUP else "true_state")


@pytest.mark.simulator
def test_updates_begin_after_the_seed_frames() -> None:
    config = apply_sections(make_config(BASE, PENDULUM, 101), {"schedule": {"random_steps": 100, "seed_frames": 40}})
    run, calls = StateRun(config), list[int]()
    agent: Any = run.agent

    def record(_: Any, step: int) -> dict[str, Any]:
        calls.append(step)
        return {}

    agent.update = record
    for _ in range(14):
        run.advance()
    assert calls == [10, 12, 14]
