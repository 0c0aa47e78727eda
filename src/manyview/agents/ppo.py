"""PPO (Schulman et al., 2017) on any representation, with any bonus.

Clipped surrogate objective, clipped value loss, GAE; the bonus is computed once per rollout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manyview.agents.advantages import EpisodeReturns, RewardNormalizer, explained_variance, gae
from manyview.agents.distributions import ActionDistribution, Categorical, Gaussian
from manyview.agents.on_policy import OnPolicyAgent, OnPolicyConfig
from manyview.data.action_spec import ActionSpec
from manyview.data.batch import Minibatch
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.mem.reward import total_reward
from manyview.methods.interfaces import Bonus, BuildContext, Representation
from manyview.methods.registry import register_agent
from manyview.nn.heads import compute_dormant_fraction, mlp
from manyview.nn.optim import make_adam, optimizer_step
from manyview.utils.counter_rng import derive_keys
from manyview.utils.validation import (
    MAX_UNITS,
    check_at_least,
    check_at_most,
    check_positive,
    check_unit_interval,
)

ACT_STREAM, EVAL_STREAM = 0, 1
"""Noise streams of training and of evaluation."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    hidden: int = 256
    """Hidden width of policy and value function."""
    lr: float = 5e-4
    """Learning rate of policy, value function and representation."""
    clip_coef: float = 0.2
    """Clip coefficient ε of the probability ratio and of the value."""
    entropy_coef: float = 0.01
    """Weight of the policy's entropy in the loss."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Maximum gradient norm; longer gradients are clipped."""
    discount: float = 0.99
    """Discount factor γ."""
    gae_lambda: float = 0.95
    """λ of the GAE advantages."""
    normalize_rewards: bool = True
    """Divide extrinsic rewards by the running standard deviation of the discounted returns."""
    greedy_evaluation: bool = False
    """Evaluate with the most likely action; by default actions are sampled, as is usual on Procgen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "hidden")
        check_at_most(self, MAX_UNITS, "hidden")
        check_at_least(self, 0, "entropy_coef", "value_coef")
        check_positive(self, "lr", "clip_coef", "max_grad_norm")
        check_unit_interval(self, "discount", "gae_lambda")


class PPO(OnPolicyAgent):
    """Policy and value function on the representation's state, trained on rollouts."""

    config: PPOConfig
    episode_buffers = (*OnPolicyAgent.episode_buffers, "reward_normalizer.returns", "bonus_returns.returns")
    supports_state_vectors = True

    def __init__(
        self,
        representation: Representation,
        action_spec: ActionSpec,
        config: PPOConfig,
        *,
        num_envs: int,
        bonus: Bonus | None = None,
        beta: Callable[[int], float] | None = None,
        seed: int = 0,
        vector_size: int = 0,
    ) -> None:
        super().__init__(representation, bonus=bonus, beta=beta, vector_size=vector_size, vector_dim=config.vector_dim)
        self.config, self.action_spec, self.seed = config, action_spec, seed
        # A small last gain makes the initial policy nearly uniform.
        self.policy = mlp(self.state_dim, config.hidden, action_spec.size, gain=2**0.5, last_gain=0.01)
        self.value = mlp(self.state_dim, config.hidden, 1, gain=2**0.5)
        self.log_std = nn.Parameter(torch.zeros(0 if action_spec.discrete else action_spec.size))
        self.reward_normalizer, self.bonus_returns = (
            RewardNormalizer(num_envs),
            EpisodeReturns(num_envs),
        )
        vectors = [] if self.vector_encoder is None else [*self.vector_encoder.parameters()]
        heads = [*self.policy.parameters(), *self.value.parameters(), self.log_std]
        self.optimizer = make_adam(
            [*representation.parameters(), *vectors, *heads],
            lr=config.lr,
            eps=1e-5,  # as in the implementation that the paper cites
        )

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, vectors: Tensor | None = None, *, step: int, explore: bool) -> Tensor:
        """Return actions [B] or [B, A].

        Noise is a function of `step` and row: there is no generator state to save.
        """
        distribution = self._make_distribution(self.encode_observation(views, mask, vectors))
        if not explore and self.config.greedy_evaluation:
            return distribution.mode()
        return distribution.sample(self._make_keys(len(views), step, ACT_STREAM if explore else EVAL_STREAM))

    def compute_greedy_action(self, state: Tensor) -> Tensor:
        return self._make_distribution(state).mode()

    @torch.no_grad()
    def act_and_value(
        self, views: Tensor, mask: Tensor, vectors: Tensor | None = None, *, step: int
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Return sampled actions, their log-probabilities [B], values [B] and the encoded features."""
        features = self.representation.encode(views, mask)
        distribution, value = self.evaluate(self.join_vectors(features.state, vectors))
        action = distribution.sample(self._make_keys(len(views), step, ACT_STREAM))
        return action, distribution.log_prob(action), value, features

    def evaluate(self, state: Tensor) -> tuple[ActionDistribution, Tensor]:
        """Return the distributions of actions and the values [B] of the policy's states [B, S]."""
        return self._make_distribution(state), self._predict_value(state)

    @torch.no_grad()
    def predict_values(self, views: Tensor, mask: Tensor, vectors: Tensor | None = None) -> Tensor:
        """Return the values [B] of `views` [B, V, C, H, W] and raw state `vectors` [B, D]."""
        return self._predict_value(self.encode_observation(views, mask, vectors))

    @torch.no_grad()
    def compute_meters(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the shares of dormant units of policy and value function."""
        state = self.encode_observation(batch.views, batch.mask, batch.vectors)
        heads = {"dormant_actor": self.policy, "dormant_critic": self.value}
        return {name: compute_dormant_fraction(head, state) for name, head in heads.items()}

    @torch.no_grad()
    def compute_advantages(self, rollout: RolloutBuffer, elapsed: int) -> dict[str, Tensor]:
        """Store bonus and GAE advantages in a full rollout and return metrics.

        `elapsed` is the count that β decays with, in the unit of its schedule.
        """
        config, reward_int = self.config, self.compute_bonus(rollout)
        reward_ext = (
            self.reward_normalizer(rollout.reward_ext, rollout.done) if config.normalize_rewards else rollout.reward_ext
        )
        # PAPER: D33. ř is normalized, r̂ is not: β alone sets its weight.
        beta = self.beta(elapsed)
        reward = total_reward(reward_ext, reward_int, beta)  # Eq. 10
        rollout.reward_int = reward_int
        rollout.advantage = gae(
            reward,
            rollout.value,
            rollout.compute_next_value(),
            rollout.done,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        means = {"reward_ext": rollout.reward_ext, "reward_int": reward_int, "reward": reward}
        episode_bonuses = self.bonus_returns(reward_int, rollout.done)
        if len(episode_bonuses):
            means["return_int"] = episode_bonuses
        metrics = {
            "beta": reward.new_tensor(beta),
            "explained_variance": explained_variance(rollout.value, rollout.advantage),
        }
        return metrics | {name: part.mean() for name, part in means.items()} | self.start_updates(rollout)

    def rollback(self, state: dict[str, Any]) -> None:
        """Restore `state`, except the returns of the running episodes.

        The environments continue these episodes. Non-finite returns become 0: they would stay in the sums, and a
        checkpoint with them cannot be loaded.
        """
        returns, bonuses = (
            meter.returns.nan_to_num(0.0, 0.0, 0.0) for meter in (self.reward_normalizer, self.bonus_returns)
        )
        super().rollback(state)
        self.reward_normalizer.returns.copy_(returns)
        self.bonus_returns.returns.copy_(bonuses)

    def reset_episodes(self) -> None:
        """Clear the returns of the running episodes: every environment starts a new one."""
        self.reward_normalizer.returns.zero_()
        self.bonus_returns.returns.zero_()

    def update(self, batch: Minibatch) -> dict[str, Tensor]:
        """Take one update on a minibatch: policy, value function and representation."""
        config = self.config
        features = self.representation.encode(batch.views, batch.mask)
        distribution, value = self.evaluate(self.join_vectors(features.state, batch.vectors))

        # Clipped surrogate objective.
        log_ratio = distribution.log_prob(batch.action) - batch.log_prob
        ratio, advantage = log_ratio.exp(), _standardize(batch.advantage)
        clipped_ratio = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
        policy_loss = -torch.minimum(ratio * advantage, clipped_ratio * advantage).mean()
        entropy = distribution.entropy().mean()

        # Clipped value loss.
        clipped_value = batch.value + (value - batch.value).clamp(-config.clip_coef, config.clip_coef)
        errors = torch.maximum((value - batch.returns).square(), (clipped_value - batch.returns).square())
        value_loss = 0.5 * errors.mean()

        # Policy, value function and representation in one backward pass.
        representation_loss, metrics = self.compute_representation_loss(batch, features, distribution, value)
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy + representation_loss
        grad_norm = optimizer_step(loss, self.optimizer, max_grad_norm=config.max_grad_norm)
        metrics |= self.update_representation(batch, features)
        metrics |= self.update_bonus(batch)

        agent_metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "grad_norm": grad_norm,
            "approx_kl": ((ratio - 1) - log_ratio).mean(),  # unbiased, never negative
            "clip_fraction": (ratio != clipped_ratio).float().mean(),  # clip fraction, the share outside 1 ± ε
            "value": value.mean(),
        }
        return metrics | {name: tensor.detach() for name, tensor in agent_metrics.items()}

    def _make_distribution(self, state: Tensor) -> ActionDistribution:
        outputs = self.policy(state)
        return Categorical(outputs) if self.action_spec.discrete else Gaussian(outputs, self.log_std)

    def _predict_value(self, state: Tensor) -> Tensor:
        value: Tensor = self.value(state).squeeze(-1)
        return value

    def _make_keys(self, batch_size: int, step: int, stream: int) -> Tensor:
        device = self.log_std.device
        row = torch.arange(batch_size, device=device)
        return derive_keys(self.seed, torch.full_like(row, step), row, torch.full_like(row, stream))


def _standardize(advantage: Tensor) -> Tensor:
    if len(advantage) < 2:  # the last minibatch may have a single row, which has no standard deviation
        return torch.zeros_like(advantage)
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


@register_agent("ppo", PPOConfig, data="rollout")
def build_ppo(config: PPOConfig, context: BuildContext) -> PPO:
    """Build PPO."""
    return PPO(
        context.representation,
        context.actions,
        config,
        num_envs=context.num_envs,
        bonus=context.bonus,
        beta=context.beta,
        seed=context.seed,
        vector_size=context.vector_size,
    )
