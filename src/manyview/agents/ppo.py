"""PPO (Schulman et al., 2017) on any representation, with any intrinsic reward."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from manyview.agents.advantages import EpisodeSums, ReturnScale, explained_share, gae
from manyview.agents.agent import Agent, no_bonus
from manyview.agents.networks import adam, descend, mlp
from manyview.agents.policies import Actions, Categorical, Gaussian, Policy
from manyview.data.draws import keys
from manyview.data.rollout import Minibatch, Rollout, of_rows
from manyview.mem.choices import (
    MOST_UNITS,
    refuse_above,
    refuse_below,
    refuse_not_positive,
    refuse_outside_0_to_1,
    refuse_unknown_choices,
)
from manyview.methods.protocols import Adversarial, Episodic, Intrinsic, Representation

Neighbours = Literal["env", "pooled"]
ACTING, EVALUATING = 0, 1
"""Streams of noise."""


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    hidden: int = 256
    """Width of policy and value."""
    lr: float = 5e-4
    clip: float = 0.2
    """How far the probability of an action may move in one iteration, and its state's value."""
    entropy_coef: float = 0.01
    """Weight of the policy's entropy."""
    value_coef: float = 0.5
    """Weight of the value's loss."""
    max_grad_norm: float = 0.5
    """A longer gradient is cut to this length."""
    discount: float = 0.99
    """γ."""
    gae_decay: float = 0.95
    """λ of the advantages."""
    epochs: int = 3
    """How often an iteration goes through its rollout."""
    batch_size: int = 256
    """Rows of a minibatch."""
    neighbours: Neighbours = "env"
    """Among whose states r̂ is searched: those of the same environment (`env`), or of all of them (`pooled`)."""
    window: int = 2_048
    """Rows among which each is searched when they are `pooled`."""
    scale_rewards: bool = True
    """Divide extrinsic rewards by the running deviation of their discounted sums."""
    greedy_evaluation: bool = False
    """Evaluate with the likeliest action instead of drawing one, as the field does on Procgen."""

    def __post_init__(self) -> None:
        refuse_unknown_choices(self)
        refuse_below(self, 1, "hidden", "epochs", "window")
        refuse_above(self, MOST_UNITS, "hidden")
        refuse_below(self, 2, "batch_size")  # one row has no spread to measure its advantage by
        refuse_below(self, 0, "entropy_coef", "value_coef")
        refuse_not_positive(self, "lr", "clip", "max_grad_norm")
        refuse_outside_0_to_1(self, "discount", "gae_decay")


class PPO(Agent):
    """Policy and value on `representation.encode(...).state`, trained together with it on rollouts."""

    def __init__(
        self,
        representation: Representation,
        actions: Actions,
        config: PPOConfig,
        *,
        envs: int,
        intrinsic: Intrinsic | Episodic | None = None,
        beta: Callable[[int], float] = no_bonus,
        seed: int = 0,
    ) -> None:
        super().__init__(representation, intrinsic=intrinsic, beta=beta)
        self.config, self.actions, self.seed = config, actions, seed
        # The policy is nearly uniform at first.
        self.policy = mlp(representation.state_dim, config.hidden, actions.count, gain=2**0.5, last_gain=0.01)
        self.value = mlp(representation.state_dim, config.hidden, 1, gain=2**0.5)
        self.log_std = nn.Parameter(torch.zeros(0 if actions.discrete else actions.count))
        self.return_scale, self.bonus_sums = ReturnScale(envs, discount=config.discount), EpisodeSums(envs)
        self.learn = adam(
            [*representation.parameters(), *self.policy.parameters(), *self.value.parameters(), self.log_std],
            lr=config.lr,
            eps=1e-5,  # as in the code the paper names
        )

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        """Actions [B] or [B, A]; noise is by `step` and row, so nothing of it has to be kept."""
        policy = self._policy(self.representation.encode(views, mask).state)
        if not explore and self.config.greedy_evaluation:
            return policy.likeliest()
        return policy.drawn(self._keys(len(views), step, ACTING if explore else EVALUATING))

    @torch.no_grad()
    def decide(self, views: Tensor, mask: Tensor, *, step: int) -> tuple[Tensor, Tensor, Tensor, Any]:
        """An action for each row, its log-probability, the state's value, and the features they were made of."""
        features = self.representation.encode(views, mask)
        policy = self._policy(features.state)
        action = policy.drawn(self._keys(len(views), step, ACTING))
        return action, policy.log_prob(action), self._value(features.state), features

    @torch.no_grad()
    def value_of(self, views: Tensor, mask: Tensor) -> Tensor:
        return self._value(self.representation.encode(views, mask).state)

    @torch.no_grad()
    def appraise(self, rollout: Rollout, elapsed: int) -> dict[str, Tensor]:
        """Total rewards and advantages of a whole rollout, put into it."""
        config, reward_int = self.config, self._reward_int(rollout)
        scaled = self.return_scale(rollout.reward_ext, rollout.ended) if config.scale_rewards else rollout.reward_ext
        # PAPER: D33. ř is scaled, r̂ is not: β says how much it counts.
        beta = self.beta(elapsed)
        reward = scaled + beta * reward_int
        rollout.reward_int = reward_int
        rollout.advantage = gae(
            reward,
            rollout.value,
            rollout.next_value(),
            rollout.ended,
            discount=config.discount,
            decay=config.gae_decay,
        )
        means = {"reward_ext": rollout.reward_ext, "reward_int": reward_int, "reward": reward}
        ended = self.bonus_sums(reward_int, rollout.ended)
        if len(ended):
            means["return_int"] = ended
        found = {"beta": reward.new_tensor(beta), "explained": explained_share(rollout.value, rollout.advantage)}
        return found | {name: part.mean() for name, part in means.items()}

    def go_back(self, state: dict[str, Any]) -> None:
        """The environments go on with their episodes, and these with what they have been paid.

        But for what is no number: it would stay in the sums, and no checkpoint with it can be loaded.
        """
        returns, bonuses = (kept.sums.nan_to_num(0.0, 0.0, 0.0) for kept in (self.return_scale, self.bonus_sums))
        super().go_back(state)
        self.return_scale.sums.copy_(returns)
        self.bonus_sums.sums.copy_(bonuses)

    def forget_episodes(self) -> None:
        """New ones begin everywhere."""
        self.return_scale.sums.zero_()
        self.bonus_sums.sums.zero_()

    def update(self, batch: Minibatch) -> dict[str, Tensor]:
        """One step of policy, value and representation, in one backward pass."""
        config = self.config
        features = self.representation.encode(batch.views, batch.mask)

        policy = self._policy(features.state)
        log_ratio = policy.log_prob(batch.action) - batch.log_prob
        ratio, advantage = log_ratio.exp(), _standardised(batch.advantage)
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        entropy = policy.entropy().mean()

        value = self._value(features.state)
        near = batch.value + (value - batch.value).clamp(-config.clip, config.clip)
        errors = torch.maximum((value - batch.returns).square(), (near - batch.returns).square())
        value_loss = 0.5 * errors.mean()

        representation_loss, metrics = self.representation.loss(features, batch.later)
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy + representation_loss
        grad = descend(loss, self.learn, most=config.max_grad_norm)
        if isinstance(self.representation, Adversarial):
            metrics |= self.representation.update_discriminator(features)
        if isinstance(self.intrinsic, Episodic):
            metrics |= self.intrinsic.learn(batch)

        own = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "grad": grad,
            "kl": ((ratio - 1) - log_ratio).mean(),
            "clipped": (ratio != clipped).float().mean(),
            "value": value.mean(),
        }
        return metrics | {name: one.detach() for name, one in own.items()}

    def _reward_int(self, rollout: Rollout) -> Tensor:
        """r̂ [T, E]: of each environment's states among themselves, or of all of them `pooled`."""
        if self.intrinsic is None:
            return torch.zeros_like(rollout.reward_ext)
        kept, encode = rollout.features, self.intrinsic.encode
        features = kept if kept is not None and self.pays_what_it_encodes else rollout.encoded(encode)
        if isinstance(self.intrinsic, Episodic):
            return self.intrinsic.reward_along(features, rollout.ended)
        steps, envs = rollout.reward_ext.shape
        every = of_rows(features, lambda part: part[:steps].flatten(0, 1))
        if self.config.neighbours == "pooled":
            return self.intrinsic.reward(every, window=self.config.window, batches=envs).view(steps, envs)
        return self.intrinsic.reward(every, apart=envs, batches=envs).view(steps, envs)

    def _policy(self, state: Tensor) -> Policy:
        outputs = self.policy(state)
        return Categorical(outputs) if self.actions.discrete else Gaussian(outputs, self.log_std)

    def _value(self, state: Tensor) -> Tensor:
        value: Tensor = self.value(state).squeeze(-1)
        return value

    def _keys(self, rows: int, step: int, stream: int) -> Tensor:
        device = self.log_std.device
        row = torch.arange(rows, device=device)
        return keys(self.seed, torch.full_like(row, step), row, torch.full_like(row, stream))


def _standardised(advantage: Tensor) -> Tensor:
    if len(advantage) < 2:  # rollouts of so few rows that a part of them is one, which has no spread
        return torch.zeros_like(advantage)
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
