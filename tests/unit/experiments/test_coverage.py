"""Coverage counts cells of the true state, and the agent of its study sees no reward."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.bonus.controls import UnrewardedSAC, UnrewardedSACConfig, register_controls
from experiments.coverage import (
    FILM_FRAMES,
    FILM_STRIDE,
    NUM_BINS,
    SPACES,
    compute_log_distance,
    count_visits,
    measure_states,
)
from experiments.coverage.training import cut_film, train
from manyview.config.overrides import to_plain
from manyview.data import ReplayBuffer
from manyview.envs import MASK, View
from manyview.envs.views import Observation
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig
from manyview.scale.sweep import read_sweep
from tests.support.batches import IMAGE_SHAPE
from tests.support.state_vectors import VECTOR_SIZE, make_vector_batch

PENDULUM, HOPPER = SPACES["dmc/pendulum_swingup"], SPACES["dmc/hopper_stand"]
SWEEP = Path(__file__).parents[3] / "experiments" / "coverage" / "bonuses.toml"


def test_poses_are_counted_in_their_cells() -> None:
    upright, hanging, faster = [1.0, 0.0, 0.0], [-1.0, 1e-9, 0.0], [1.0, 0.0, 99.0]
    visits = count_visits(np.array([upright, upright, hanging, faster]), PENDULUM)
    middle = NUM_BINS // 2
    assert visits.sum() == 4
    assert visits[middle, middle] == 2
    assert visits[-1, middle] == 1
    assert visits[middle, -1] == 1


def test_a_full_turn_of_the_torso_is_the_same_pose() -> None:
    states = np.random.default_rng(0).normal(size=(50, 13))
    turned = states.copy()
    turned[:, 1] += 2 * np.pi
    assert (count_visits(states, HOPPER) == count_visits(turned, HOPPER)).all()
    assert compute_log_distance(states, HOPPER) == pytest.approx(compute_log_distance(turned, HOPPER))


def test_the_log_distance_is_that_of_the_third_neighbor() -> None:
    states = np.random.default_rng(1).normal(size=(40, 3))
    scaled = states / np.array(PENDULUM.spreads)
    nearest = [sorted(np.linalg.norm(scaled - row, axis=1))[3] for row in scaled]
    assert compute_log_distance(states, PENDULUM) == pytest.approx(np.log(nearest).mean())


def test_coverage_grows_with_the_frames() -> None:
    states = np.random.default_rng(2).normal(size=(100, 3))
    cells = [value for _, _, name, value in measure_states(states, PENDULUM, 1_000) if name == "visited_cells"]
    assert cells == sorted(cells)
    assert len(cells) == 10
    assert cells[-1] == (count_visits(states, PENDULUM) > 0).mean()


def test_the_agent_learns_nothing_from_rewards() -> None:
    batch, weights = make_vector_batch(), []
    for reward in (0.0, 100.0):
        torch.manual_seed(0)
        encoder = PixelEncoder(batch.mask.shape[1], IMAGE_SHAPE, PixelEncoderConfig(trunk="small", latent_dim=8))
        config = UnrewardedSACConfig(hidden=8)
        agent = UnrewardedSAC(encoder, batch.action.shape[1], config, vector_size=VECTOR_SIZE)
        agent.update(batch._replace(reward_ext=torch.full_like(batch.reward_ext, reward)), 0)
        weights.append(torch.cat([parameter.flatten() for parameter in agent.parameters()]))
    assert torch.equal(*weights)


def test_the_untrained_encoder_has_the_settings_of_mem() -> None:
    register_controls()
    bonuses = {run.config.bonus_name: to_plain(run.config.bonus) for run in read_sweep(SWEEP).plan_runs()}
    assert bonuses["untrained_mem"] == bonuses["mem"] | {"reward_frames": None}
    assert {bonus["beta0"] for name, bonus in bonuses.items() if name != "none"} == {1.8}


def test_a_film_shows_the_newest_steps_of_the_first_camera_in_order() -> None:
    cameras = [View("front", 4, 4), View("side", 4, 4)]
    replay = ReplayBuffer(cameras, action_shape=(1,), capacity=40, frame_stack=2)
    for step in range(60):  # the ring wraps
        front, side = np.full((4, 4, 3), step, np.uint8), np.zeros((4, 4, 3), np.uint8)
        observation: Observation = {"front": front, "side": side, MASK: np.ones(2, np.int8)}
        if step == 0:
            replay.start_episode(observation)
        else:
            replay.add(np.zeros(1, np.float32), 0.0, False, observation)
    film = cut_film(replay)
    assert film.shape == (FILM_FRAMES, 4, 4, 3)
    assert film[:, 0, 0, 0].tolist() == [59 - FILM_STRIDE * back for back in range(FILM_FRAMES)][::-1]


@pytest.mark.simulator
def test_a_run_leaves_the_states_that_it_visited(tmp_path: Path) -> None:
    register_controls()
    text = SWEEP.read_text().replace("runs/coverage", str(tmp_path / "runs")).replace("25_000", "160")
    assert text.count("160") == 2  # of training and its evaluation
    short = '[set]\n"schedule.seed_frames" = 100\n"replay.batch_size" = 8\n"logging.checkpoint_every_frames" = 80'
    (tmp_path / "sweep.toml").write_text(text.replace("[set]", short))
    run = next(run for run in read_sweep(tmp_path / "sweep.toml").plan_runs() if run.config.bonus_name == "mem")
    assert run.config.task == "dmc/pendulum_swingup"
    train(run)
    with np.load(run.run_dir / "states.npz") as file:
        states, film = file["states"], file["film"]
    assert states.shape == (41, 3)  # before each of 40 steps, and after the last
    assert film.shape == (FILM_FRAMES, 32, 32, 3)
    assert len(np.unique(film, axis=0)) > 1  # the pole moves
    np.testing.assert_allclose((states[:, :2] ** 2).sum(1), 1, rtol=1e-5)
    train(run)  # a finished run is left alone
    (run.run_dir / "states.npz").unlink()  # killed before it was written
    train(run)
    np.testing.assert_array_equal(np.load(run.run_dir / "states.npz")["states"], states)
