"""Train DrQ-v2 on the simulator's state instead of images: the effect of the bonus with ideal features.

    python -m experiments.from_state --workers 2      # run what results/from_state is missing, then print the table

Agent, noise, bonus and length are those of the preset `cpu`; only the image encoder, most of the compute, is left out.
`true_state` is r̂ of Eq. 9 with positions and velocities as its only term. Seeds are fixed beforehand; all are kept.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.tables import Row, append_rows, format_table, read_runs, select_settings
from manyview.agents.base import zero_beta
from manyview.agents.drqv2 import DrQv2
from manyview.config.overrides import to_plain
from manyview.config.presets import load_preset
from manyview.config.schema import RunConfig
from manyview.data.batch import Batch
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.mem.knn import ReferenceSet, knn_distance
from manyview.methods import Bonus, MEMBonusConfig
from manyview.nn.normalization import make_reward_moments
from manyview.nn.trunks import init_orthogonal

Array = NDArray[np.float32]
STUDY, VARIANT = "from_state", "cpu"
SEEDS = (1, 2, 3)
BONUSES = ("true_state", "none")
EVALUATION_EPISODES = 10
# Divisors of the state, so that all its numbers count alike.
SPREADS = {
    "dmc/ball_in_cup_catch": (0.2, 0.2, 0.2, 0.2, 2.0, 2.0, 2.0, 2.0),  # positions [m], velocities [m/s]
    "dmc/pendulum_swingup": (1.0, 1.0, 5.0),  # cosine and sine of the angle, its velocity [rad/s]
}


class StateFeatures(NamedTuple):
    state: Tensor
    mask: Tensor


class StateEncoder(nn.Module):
    """Two layers in the place of the image encoder, then LayerNorm and tanh as DrQ-v2 has before its heads."""

    uses_next_features = False

    def __init__(self, numbers: int, state_dim: int) -> None:
        super().__init__()
        self.state_dim = state_dim
        self.layers = nn.Sequential(
            nn.Linear(numbers, 128), nn.ReLU(), nn.Linear(128, state_dim), nn.LayerNorm(state_dim), nn.Tanh()
        )
        self.apply(init_orthogonal)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> StateFeatures:  # noqa: ARG002
        return StateFeatures(self.layers(views), torch.ones(len(views), 1, dtype=torch.bool))

    def compute_loss(self, features: StateFeatures, next_features: StateFeatures) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return features.state.new_zeros(()), {}


class Steps:
    """All steps of a run; samples batches of n-step transitions."""

    def __init__(self, most: int, numbers: int, actions: int) -> None:
        self.states, self.later = np.zeros((2, most, numbers), np.float32)
        self.actions, self.rewards = np.zeros((most, actions), np.float32), np.zeros(most, np.float32)
        self.episodes, self.count = np.zeros(most, np.int64), 0

    def add(self, state: Array, action: Array, reward: float, later: Array, *, episode: int) -> None:
        at, self.count = self.count, self.count + 1
        self.states[at], self.actions[at], self.rewards[at], self.later[at] = state, action, reward, later
        self.episodes[at] = episode

    def batch(self, size: int, rng: np.random.Generator, *, n_step: int, discount: float) -> Batch:
        rows = rng.integers(0, self.count - n_step + 1, size)
        last, reward, weight = rows.copy(), np.zeros(size, np.float32), np.ones(size, np.float32)
        for ahead in range(n_step):
            same = self.episodes[rows + ahead] == self.episodes[rows]  # these episodes end by time alone
            reward += np.where(same, weight * self.rewards[rows + ahead], 0)
            weight, last = np.where(same, weight * np.float32(discount), weight), np.where(same, rows + ahead, last)
        here = torch.ones(size, 1, dtype=torch.bool)
        parts = (self.states[rows], here, self.actions[rows], reward, weight, self.later[last], here, rows, last + 1)
        return Batch(*map(torch.as_tensor, parts))


class TrueNovelty(Bonus):
    """Bonus log(distance + 1) to the k-th nearest of the batch and of as many other steps as MEM's bank, `centered`."""

    config: MEMBonusConfig

    def __init__(self, steps: Steps, rng: np.random.Generator, config: MEMBonusConfig) -> None:
        super().__init__()
        self.steps, self.rng, self.config = steps, rng, config
        self.reward_moments = make_reward_moments("centered")

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        others = self.rng.integers(0, self.steps.count, self.config.bank)
        points = torch.cat([batch.views, torch.as_tensor(self.steps.states[others])])
        all_rows = torch.cat([batch.indices, torch.as_tensor(others)])
        among = ReferenceSet(points[None], torch.ones(1, len(points), dtype=torch.bool), all_rows)
        reward = knn_distance(batch.views[None], self.config.k, indices=batch.indices, reference=among)[0].log1p()
        self.reward_moments.update(reward.unsqueeze(1))
        return self.reward_moments.scale_reward(reward, "centered")


class Control:
    """A control task without images; one step repeats the action as often as the preset does."""

    def __init__(self, task: str, *, repeat: int, seed: int) -> None:
        from dm_control import suite  # an extra

        self.env = suite.load(*task.removeprefix("dmc/").rsplit("_", 1), task_kwargs={"random": seed})
        self.actions, self.repeat, self.spread = self.env.action_spec().shape[0], repeat, np.array(SPREADS[task])
        self.numbers = len(self.spread)

    def reset(self) -> Array:
        return self._state(self.env.reset())

    def step(self, action: Array) -> tuple[Array, float, bool]:
        reward = 0.0
        for _ in range(self.repeat):
            moved = self.env.step(action)
            reward += moved.reward
            if moved.last():
                break
        return self._state(moved), reward, moved.last()

    def _state(self, moved: Any) -> Array:
        parts = [np.atleast_1d(part) for part in moved.observation.values()]
        state: Array = (np.concatenate(parts) / self.spread).astype(np.float32)
        return state


def make_config(task: str, seed: int) -> RunConfig:
    return load_preset("cpu", task=task, method="drqv2+mem", seed=seed)


def train_run(task: str, bonus: str, seed: int) -> list[Row]:
    """Train one run; return its rows: the mean return of each evaluation and the numbers of training episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = make_config(task, seed)
    replay, schedule, repeat = config.replay, config.schedule, config.env.action_repeat or 1
    env, held_out = Control(task, repeat=repeat, seed=seed), Control(task, repeat=repeat, seed=1_000)
    rng, steps = np.random.default_rng(seed), Steps(schedule.frames // repeat, env.numbers, env.actions)
    paid = bonus == "true_state"
    agent = DrQv2(
        StateEncoder(env.numbers, config.representation.latent_dim),
        env.actions,
        config.agent,
        bonus=TrueNovelty(steps, rng, config.bonus) if paid else None,
        beta=config.bonus if paid else zero_beta,
        augmentation=ImageAugmentation("none"),
        seed=seed,
    )

    def act(state: Array, *, step: int, explore: bool) -> Array:
        views, mask = torch.from_numpy(state)[None], torch.ones(1, 1, dtype=torch.bool)
        return agent.act(views, mask, step=step, explore=explore)[0].numpy()

    def evaluated() -> float:
        return float(np.mean([played(held_out) for _ in range(EVALUATION_EPISODES)]))

    def played(env: Control) -> float:
        state, total, ended = env.reset(), 0.0, False
        while not ended:
            state, reward, ended = env.step(act(state, step=0, explore=False))
            total += reward
        return total

    state, returns, evaluations, total = env.reset(), list[float](), list[float](), 0.0
    for step in range(schedule.frames // repeat):
        random = step < schedule.random_steps
        action = rng.uniform(-1, 1, env.actions) if random else act(state, step=step, explore=True)
        later, reward, ended = env.step(action)
        steps.add(state, action, reward, later, episode=len(returns))
        state, total = later, total + reward
        if ended:
            returns.append(total)
            state, total = env.reset(), 0.0
        if step * repeat >= schedule.seed_frames and step % schedule.update_every_steps == 0:
            batch = steps.batch(replay.batch_size, rng, n_step=replay.n_step, discount=replay.discount)
            agent.update(batch, step)
        if (step + 1) * repeat % config.evaluation.every_frames == 0:
            evaluations.append(evaluated())
    return _make_rows(task, bonus, seed, config, evaluations=evaluations, returns=returns)


def _make_rows(
    task: str, bonus: str, seed: int, config: RunConfig, *, evaluations: list[float], returns: list[float]
) -> list[Row]:
    key, every = (STUDY, VARIANT, task, "drqv2", "state", bonus, "", seed), float(config.evaluation.every_frames)
    points = [(every * number, "return", value) for number, value in enumerate(evaluations, 1)]
    counts = {"training_episodes": len(returns), "rewarded_episodes": sum(value > 0 for value in returns)}
    points += [(float(config.schedule.frames), name, float(value)) for name, value in counts.items()]
    return [Row(*key, frames, None, metric, value, "") for frames, metric, value in points]


HEAD = ("task", "bonus", "seed", "return after 10,000, 20,000 ... frames", "rewarded episodes")


def list_rows() -> Iterator[tuple[str, ...]]:
    """Yield a line for each run in the table."""
    for found in sorted(read_runs(STUDY), key=lambda run: (run.task, run.rows[0].bonus == "none", run.seed)):
        rewarded = f"{found.last('rewarded_episodes'):.0f} of {found.last('training_episodes'):.0f}"
        means = ", ".join(f"{value:.0f}" for value in found.series("return")[1])
        yield f"`{found.task}`", found.rows[0].bonus, str(found.seed), means, rewarded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    workers = parser.parse_args().workers
    done = {(found.task, found.rows[0].bonus, found.seed) for found in read_runs(STUDY)}
    missing = [cell for cell in product(sorted(SPREADS), BONUSES, SEEDS) if cell not in done]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(train_run, *cell): cell for cell in missing}
        for finished in as_completed(jobs):
            task, bonus, seed = jobs[finished]
            append_rows(STUDY, finished.result(), {VARIANT: select_settings(to_plain(make_config(task, seed)))})
            print(f"{task}, {bonus}, seed {seed}: added to the table", flush=True)
    print(format_table(HEAD, list_rows()))


if __name__ == "__main__":
    main()
