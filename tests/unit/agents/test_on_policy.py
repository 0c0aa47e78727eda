"""`OnPolicyAgent` alone: an agent without parts of PPO trains, resumes and is evaluated."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.agents import OnPolicyAgent, OnPolicyConfig
from manyview.data import Minibatch, RolloutBuffer
from manyview.methods import AGENTS, BuildContext
from manyview.methods.registry import Part
from manyview.nn.heads import mlp
from manyview.nn.optim import make_adam, optimizer_step
from manyview.training import RunDir, run
from manyview.training.testing import CompositionContract
from tests.support.runs import SHORT_ROLLOUT_SETTINGS, make_short_config


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(OnPolicyConfig):
    lr: float = 1e-3


class Reinforce(OnPolicyAgent):
    """A softmax policy trained on rewards, without a value function."""

    config: ReinforceConfig

    def __init__(self, config: ReinforceConfig, context: BuildContext) -> None:
        super().__init__(context.representation, bonus=context.bonus, beta=context.beta)
        self.config, self.actions = config, context.actions
        self.policy = mlp(self.representation.state_dim, 16, context.actions.size)
        self.generator = torch.Generator().manual_seed(context.seed)
        self.optimizer = make_adam([*self.representation.parameters(), *self.policy.parameters()], lr=config.lr)

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:  # type: ignore[override]  # noqa: ARG002
        return self.policy(self.representation.encode(views, mask).state).argmax(1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def act_and_value(  # type: ignore[override]
        self,
        views: Tensor,
        mask: Tensor,
        *,
        step: int,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        features = self.representation.encode(views, mask)
        log_probs = self.policy(features.state).log_softmax(1)
        action = torch.multinomial(log_probs.exp(), 1, generator=self.generator)
        return action[:, 0], log_probs.gather(1, action)[:, 0], torch.zeros(len(views)), features

    def predict_values(self, views: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]  # noqa: ARG002
        return torch.zeros(len(views))

    def compute_advantages(self, rollout: RolloutBuffer, elapsed: int) -> dict[str, Tensor]:
        rollout.reward_int = self.compute_bonus(rollout)
        rollout.advantage = rollout.reward_ext + self.beta(elapsed) * rollout.reward_int
        return {"reward_int": rollout.reward_int.mean()}

    def update(self, batch: Minibatch) -> dict[str, Tensor]:
        features = self.representation.encode(batch.views, batch.mask)
        log_probs = self.policy(features.state).log_softmax(1).gather(1, batch.action.unsqueeze(1))[:, 0]
        representation_loss, metrics = self.representation.compute_loss(features, batch.next_features)
        policy_loss = -(log_probs * batch.advantage).mean()
        optimizer_step(policy_loss + representation_loss, self.optimizer)
        metrics |= self.update_representation(batch, features)
        if self.bonus is not None:
            metrics |= self.bonus.update(batch)
        return metrics | {"policy_loss": policy_loss.detach()}

    def compute_meters(self, *_: Any) -> dict[str, Tensor]:
        return {}


@pytest.fixture(autouse=True)
def reinforce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGENTS._parts, "reinforce", Part("reinforce", ReinforceConfig, Reinforce, ("rollout",)))


@pytest.mark.parametrize("parts", ["mem+mem", "pixel+ride"])
def test_an_agent_without_parts_of_ppo_resumes_bit_for_bit(parts: str) -> None:
    contract = DiscreteContract()
    contract.test_training_is_finite_and_resumes_bit_for_bit(f"reinforce+{parts}", contract.build_trainer)


class DiscreteContract(CompositionContract):
    __test__ = False
    updates = 4

    def build_trainer(self, method: str, *, env: str = "eight_views_discrete", precision: str = "float32") -> Any:
        return super().build_trainer(method, env=env, precision=precision)


def test_a_run_of_reinforce_ends_with_its_evaluations(tmp_path: Any) -> None:
    config = make_short_config("reinforce+mem", task="toy/hidden_goal", **SHORT_ROLLOUT_SETTINGS)
    assert run(config, RunDir(tmp_path / "run"))


def test_the_search_set_of_reinforce_is_checked_as_that_of_ppo() -> None:
    with pytest.raises(ValueError, match=r"rollout\.steps must be more than bonus\.k, got 5 and 5"):
        make_short_config("reinforce+mem", task="toy/hidden_goal", **SHORT_ROLLOUT_SETTINGS, bonus={"k": 5})
