"""Train the library's off-policy agents on the simulator's state instead of images.

Only the image encoder, most of the compute, is left out. `true_state` is r̂ of Eq. 9 with positions and velocities as
its only term.
"""

from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.tables import Row
from manyview.agents import OffPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data.action_spec import ActionSpec
from manyview.data.batch import Batch, get_rewarded_views
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.mem.knn import ReferenceSet, knn_distance
from manyview.methods import AGENTS, Bonus, BuildContext, MEMBonusConfig
from manyview.nn.normalization import make_reward_moments
from manyview.nn.trunks import init_orthogonal
from manyview.training.manifest import describe_commit

Array = NDArray[np.float32]
EVALUATION_SEED = 1_000
METRICS = ("value", "target_std", "action_spread", "entropy", "reward_int")
"""Training metrics that are kept at each evaluation, if the agent has them."""
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

    def __init__(self, num_inputs: int, state_dim: int) -> None:
        super().__init__()
        self.state_dim = state_dim
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, 128), nn.ReLU(), nn.Linear(128, state_dim), nn.LayerNorm(state_dim), nn.Tanh()
        )
        self.apply(init_orthogonal)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> StateFeatures:  # noqa: ARG002
        return StateFeatures(self.layers(views), torch.ones(len(views), 1, dtype=torch.bool))

    def compute_loss(self, features: StateFeatures, next_features: StateFeatures) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002
        return features.state.new_zeros(()), {}


class StateReplay:
    """All steps of a run; samples batches of n-step transitions."""

    def __init__(self, capacity: int, state_dim: int, action_dim: int) -> None:
        self.states, self.next_states = np.zeros((2, capacity, state_dim), np.float32)
        self.actions, self.rewards = np.zeros((capacity, action_dim), np.float32), np.zeros(capacity, np.float32)
        self.episodes, self.size = np.zeros(capacity, np.int64), 0

    def add(self, state: Array, action: Array, reward: float, next_state: Array, *, episode: int) -> None:
        at, self.size = self.size, self.size + 1
        self.states[at], self.actions[at], self.rewards[at], self.next_states[at] = state, action, reward, next_state
        self.episodes[at] = episode

    def sample(self, count: int, rng: np.random.Generator, *, n_step: int, discount: float) -> Batch:
        rows = rng.integers(0, self.size - n_step + 1, count)
        last, reward, weight = rows.copy(), np.zeros(count, np.float32), np.ones(count, np.float32)
        for ahead in range(n_step):
            same = self.episodes[rows + ahead] == self.episodes[rows]  # these episodes end by time alone
            reward += np.where(same, weight * self.rewards[rows + ahead], 0)
            weight, last = np.where(same, weight * np.float32(discount), weight), np.where(same, rows + ahead, last)
        # The state after an episode is none of the stored ones: -1.
        has_row = (last + 1 < self.size) & (self.episodes[np.minimum(last + 1, self.size - 1)] == self.episodes[last])
        next_rows = np.where(has_row, last + 1, -1)
        mask = torch.ones(count, 1, dtype=torch.bool)
        parts = (self.states[rows], mask, self.actions[rows], reward, weight, self.next_states[last], mask)
        return Batch(*map(torch.as_tensor, (*parts, rows, next_rows)))


class StateBonus(Bonus):
    """Bonus log(distance + 1) to the k-th nearest of the batch and of as many other steps as MEM's bank, `centered`."""

    config: MEMBonusConfig

    def __init__(self, replay: StateReplay, rng: np.random.Generator, config: MEMBonusConfig) -> None:
        super().__init__()
        self.replay, self.rng, self.config = replay, rng, config
        self.reward_moments = make_reward_moments("centered")

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        states, _, rows = get_rewarded_views(batch, self.config.rewarded_state)
        bank_rows = self.rng.integers(0, self.replay.size, self.config.bank)
        points = torch.cat([states, torch.as_tensor(self.replay.states[bank_rows])])
        # Rows -1 have no copy among the others, and must not take each other for one.
        own_rows = torch.where(rows < 0, -1 - torch.arange(len(rows)), rows)
        all_rows = torch.cat([own_rows, torch.as_tensor(bank_rows)])
        reference = ReferenceSet(points[None], torch.ones(1, len(points), dtype=torch.bool), all_rows)
        reward = knn_distance(states[None], self.config.k, indices=own_rows, reference=reference)[0].log1p()
        self.reward_moments.update(reward.unsqueeze(1))
        return self.reward_moments.scale_reward(reward, "centered")


class StateEnv:
    """A control task without images; one step repeats the action as often as the preset does."""

    def __init__(self, task: str, *, repeat: int, seed: int) -> None:
        from dm_control import suite  # an extra

        self.env = suite.load(*task.removeprefix("dmc/").rsplit("_", 1), task_kwargs={"random": seed})
        self.action_dim, self.repeat, self.spread = self.env.action_spec().shape[0], repeat, np.array(SPREADS[task])

    def reset(self) -> Array:
        return self._get_state(self.env.reset())

    def step(self, action: Array) -> tuple[Array, float, bool]:
        reward = 0.0
        for _ in range(self.repeat):
            time_step = self.env.step(action)
            reward += time_step.reward
            if time_step.last():
                break
        return self._get_state(time_step), reward, time_step.last()

    def _get_state(self, time_step: Any) -> Array:
        parts = [np.atleast_1d(part) for part in time_step.observation.values()]
        state: Array = (np.concatenate(parts) / self.spread).astype(np.float32)
        return state


class StateRun:
    """Environment, replay, agent and counters of one run."""

    def __init__(self, config: RunConfig) -> None:
        torch.manual_seed(config.seed)
        self.config, repeat = config, config.env.action_repeat or 1
        self.env = StateEnv(config.task, repeat=repeat, seed=config.seed)
        self.rng, self.num_steps = np.random.default_rng(config.seed), config.schedule.frames // repeat
        self.replay = StateReplay(self.num_steps, len(self.env.spread), self.env.action_dim)
        self.agent = self._build_agent()
        self.evaluation_envs = [
            StateEnv(config.task, repeat=repeat, seed=EVALUATION_SEED + index)
            for index in range(config.evaluation.episodes)
        ]
        self.state, self.episode_return, self.returns = self.env.reset(), 0.0, list[float]()
        self.step, self.metrics = 0, dict[str, Tensor]()

    @property
    def frames(self) -> int:
        return self.step * self.env.repeat

    def advance(self) -> None:
        """Take one agent step, and an update if it is due, as `OffPolicyTrainer` does."""
        schedule, replay = self.config.schedule, self.config.replay
        if self.step < schedule.random_steps:
            action = self.rng.uniform(-1, 1, self.env.action_dim).astype(np.float32)
        else:
            action = self._act(self.state[None], explore=True)[0]
        next_state, reward, ended = self.env.step(action)
        self.replay.add(self.state, action, reward, next_state, episode=len(self.returns))
        self.state, self.episode_return, self.step = next_state, self.episode_return + reward, self.step + 1
        if ended:
            self.returns.append(self.episode_return)
            self.state, self.episode_return = self.env.reset(), 0.0
        if self.frames >= schedule.seed_frames and self.step % schedule.update_every_steps == 0:
            batch = self.replay.sample(replay.batch_size, self.rng, n_step=replay.n_step, discount=replay.discount)
            self.metrics = self.agent.update(batch, self.step)

    def evaluate(self) -> float:
        """Return the mean return of one episode in each evaluation environment, which end at the same step."""
        states, total, ended = [env.reset() for env in self.evaluation_envs], 0.0, False
        while not ended:
            actions = self._act(np.stack(states), explore=False)
            results = [env.step(action) for env, action in zip(self.evaluation_envs, actions, strict=True)]
            states, ended = [state for state, _, _ in results], results[0][2]
            total += sum(reward for _, reward, _ in results)
        return total / len(self.evaluation_envs)

    def _act(self, states: Array, *, explore: bool) -> Array:
        views, mask = torch.from_numpy(states), torch.ones(len(states), 1, dtype=torch.bool)
        actions: Array = self.agent.act(views, mask, step=self.step, explore=explore).numpy()
        return actions

    def _build_agent(self) -> OffPolicyAgent:
        config, bonus = self.config, None
        representation: Any = StateEncoder(len(self.env.spread), config.representation.latent_dim)
        if isinstance(config.bonus, MEMBonusConfig):
            bonus = StateBonus(self.replay, self.rng, config.bonus)
        context = BuildContext(
            view_names=("state",),
            image_shape=(1, 1, 1),
            frame_stack=1,
            actions=ActionSpec(self.env.action_dim, discrete=False),
            seed=config.seed,
            augmentation=ImageAugmentation("none"),
            representation=representation,
            bonus=bonus,
            beta=None if bonus is None else config.bonus,
        )
        agent: OffPolicyAgent = AGENTS[config.agent_name].build(config.agent, context)
        return agent


def train_run(study: str, variant: str, config: RunConfig) -> list[Row]:
    """Train one run on one thread and return its rows."""
    torch.set_num_threads(1)
    run, start_s, commit = StateRun(config), perf_counter(), describe_commit() or ""
    bonus = "none" if run.agent.bonus is None else "true_state"
    key = (study, variant, config.task, config.agent_name, "state", bonus, "", config.seed)
    return [
        Row(*key, float(run.frames), round(perf_counter() - start_s, 1), metric, value, commit)
        for metric, value in _measure(run)
    ]


def _measure(run: StateRun) -> Iterator[tuple[str, float]]:
    """Train to the end; yield values when they are measured."""
    while run.step < run.num_steps:
        run.advance()
        if run.frames % run.config.evaluation.every_frames == 0:
            yield "return", run.evaluate()
            yield from ((name, run.metrics[name].item()) for name in METRICS if name in run.metrics)
    yield "training_episodes", float(len(run.returns))
    yield "rewarded_episodes", float(sum(value > 0 for value in run.returns))
