"""The study on the simulator's state: batches, bonus, choice of the winner and test."""

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from experiments.state import (
    AGENTS,
    BARS,
    BASE,
    CHANGES,
    CUP,
    PENDULUM,
    SEEDS,
    TUNING_ARMS,
    Arm,
    choose_combination,
    list_cells,
    list_final_rows,
    make_config,
)
from experiments.state.training import StateBonus, StateReplay, StateRun, train_run
from experiments.tables import Row, TableRun, flatten
from manyview.config.overrides import to_plain
from manyview.config.presets import apply_sections
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


def make_scores(**changed: tuple[float, float]) -> Scores:
    """Scores of all tuning runs: 300 with `base`, others by name and (Ball in Cup, Pendulum)."""
    values = {name.replace("_", " ").replace("two hot", "two-hot"): pair for name, pair in changed.items()}
    return {
        (arm.variant, task): [values.get(arm.variant, (300.0, 300.0))[task == PENDULUM]] * 3
        for arm in TUNING_ARMS
        for task in arm.tasks
    }


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


def test_the_score_is_the_mean_of_the_last_three_evaluations() -> None:
    (run, *_) = make_runs(make_scores())
    assert run.score == pytest.approx(300)


def test_the_combination_has_the_best_agent_and_the_changes_that_helped() -> None:
    scores = make_scores(
        update_every_step=(700, 290), layer_norm=(900, 199), pink_noise=(300, 301), two_hot_critic=(250, 300),
        next_state=(0, 310), sac=(800, 10), sac_one_step=(10, 700),
    )  # fmt: skip
    combined = choose_combination(make_runs(scores))
    assert combined == Arm("combined", "sac", ("update every step", "next state", "pink noise"))
    config = make_config(combined, PENDULUM, 1)
    assert (config.agent_name, config.agent.noise_color) == ("sac", "pink")
    assert (config.schedule.update_every_steps, config.replay.n_step) == (1, 3)
    assert config.bonus.rewarded_state == "next"


def test_nothing_is_chosen_before_tuning_is_complete() -> None:
    runs = make_runs(make_scores())
    assert choose_combination(runs) == Arm("combined", "base", ())
    assert choose_combination(runs[:-1]) is None
    with pytest.raises(ValueError, match="tuning is incomplete"):
        list_cells("final", runs[:-1])


def test_final_seeds_choose_nothing() -> None:
    runs = make_runs(make_scores())
    final: Scores = {(variant, task): [900.0] * 5 for variant in ("base", "combined") for task in BARS}
    assert choose_combination([*runs, *make_runs(final, stage="final")]) == choose_combination(runs)
    cells = list_cells("final", runs)
    assert [seed for _, _, seed in cells] == sorted([*range(1, 6)] * 4)


def test_every_setting_that_combines_is_applied_with_drqv2() -> None:
    config = asdict(make_config(Arm("combined", "base", tuple(CHANGES)), PENDULUM, 1).agent)
    wanted = {"layer_norm": True, "critic": "two_hot", "normalize_actor_loss": True, "noise_color": "pink"}
    assert {name: config[name] for name in wanted} == wanted


def test_the_bar_counts_seeds_and_the_test_is_corrected() -> None:
    scores: Scores = {
        ("combined", CUP): [801, 802, 803, 804, 799], ("base", CUP): [1, 2, 3, 4, 5],
        ("combined", PENDULUM): [700, 699, 1, 2, 3], ("base", PENDULUM): [900, 901, 902, 903, 904],
    }  # fmt: skip
    rows = list(list_final_rows(make_runs(scores, stage="final")))
    assert [row[2:] for row in rows] == [("4", "5", f"{2 / 252:.3f}"), ("1", "5", "1.000")]


@pytest.mark.simulator
@pytest.mark.parametrize(("variant", "task"), [("base", CUP), ("sac", PENDULUM)])
def test_a_short_run_learns_and_gives_rows(variant: str, task: str) -> None:
    arm = next(arm for arm in TUNING_ARMS if arm.variant == variant)
    short: dict[str, Any] = {
        "schedule": {"frames": 400, "random_steps": 50, "seed_frames": 320},
        "evaluation": {"every_frames": 400, "episodes": 1},
    }
    config = apply_sections(make_config(arm, task, 101), short)
    one, other = (train_run("state", variant, config) for _ in range(2))
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
