"""One update of PPO: its losses against TorchRL's and by hand, and what it may touch."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.agents import PPO, ActionSpec, NonFiniteError, PPOConfig
from manyview.agents.advantages import EpisodeReturns, explained_variance
from manyview.data import DerivedViews, Minibatch, RolloutBuffer
from manyview.data.rollout_buffer import map_features
from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.methods import (
    RE3,
    RIDE,
    MEMBonus,
    MEMBonusConfig,
    OwnEncoderConfig,
    PixelEncoder,
    PixelEncoderConfig,
    RE3Config,
    RIDEConfig,
)

IMAGE, ENVS, STEPS = (1, 20, 20), 4, 8


def agent_of(method: str = "none", *, discrete: bool = True, **config: Any) -> PPO:
    torch.manual_seed(0)
    pixel = PixelEncoder(2, IMAGE, PixelEncoderConfig(latent_dim=8, trunk="tiny"))
    mem = MEMRepresentation(["a", "b"], IMAGE, MEMRepresentationConfig(latent_dim=8, trunk="tiny"))
    representation: Any = mem if method == "mem" else pixel
    own_encoder = OwnEncoderConfig(latent_dim=8, trunk="tiny")
    intrinsic: Any = {
        "mem": MEMBonus(mem, MEMBonusConfig()),
        "pixel+mem": MEMBonus(mem, MEMBonusConfig(encoder=own_encoder)),
        "none": None,
        "re3": RE3(2, IMAGE, RE3Config(latent_dim=8, trunk="tiny")),
        "ride": RIDE(2, IMAGE, 3, RIDEConfig(latent_dim=8, trunk="tiny", hidden=16), discrete=discrete),
    }[method]
    settings = PPOConfig(**{"hidden": 16, "batch_size": 16, **config})
    beta = (lambda _: 0.1) if intrinsic is not None else (lambda _: 0.0)
    return PPO(representation, ActionSpec(3, discrete=discrete), settings, num_envs=ENVS, bonus=intrinsic, beta=beta)


def rollout_of(agent: PPO, *, seed: int = 0) -> RolloutBuffer:
    """Random pictures and rewards, answered by the agent."""
    generator = torch.Generator().manual_seed(seed)

    def pictures() -> tuple[Tensor, Tensor]:
        shape = (ENVS, 2, *IMAGE)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator), torch.ones(ENVS, 2).bool()

    rollout = RolloutBuffer(
        num_steps=STEPS,
        num_envs=ENVS,
        image_shape=IMAGE,
        num_cameras=2,
        action_shape=agent.action_spec.shape,
        action_dtype=agent.action_spec.dtype,
        derived_views=DerivedViews(seed=0),
        device=torch.device("cpu"),
    )
    rollout.reset(*pictures(), first_step=0)
    for step in range(STEPS + 1):
        action, log_prob, value, features = agent.act_and_value(*rollout.get_observation(), step=step)
        kept = features if agent.stores_features else None
        if step == STEPS:
            rollout.finish(value, kept)
            break
        views, mask = pictures()
        ended = torch.rand(2, ENVS, generator=generator) < 0.2
        rollout.add(
            action,
            log_prob,
            value,
            kept,
            reward=torch.randn(ENVS, generator=generator),
            terminated=ended[0],
            truncated=ended[1] & ~ended[0],
            final_value=torch.randn(ENVS, generator=generator),
            views=views,
            mask=mask,
        )
    agent.compute_advantages(rollout, 0)
    return rollout


@pytest.mark.quality("S3")
def test_who_goes_back_takes_no_bonus_along_that_is_no_number() -> None:
    agent = agent_of("re3")
    rollout_of(agent)
    good = deepcopy(agent.get_state())
    agent.bonus_returns.returns[:2] = torch.tensor([float("nan"), float("inf")])
    agent.reward_normalizer.returns[3] = 2.5
    agent.rollback(good)
    agent.load_state(agent.get_state())
    assert agent.bonus_returns.returns[:2].tolist() == [0, 0]
    assert agent.reward_normalizer.returns[3] == 2.5, "episodes go on with what they have been paid"


def batch_of(agent: PPO, *, rows: int = 16, seed: int = 0) -> Minibatch:
    return rollout_of(agent, seed=seed).get_minibatch(torch.arange(rows), with_next=True)


def moved(agent: PPO) -> PPO:
    """Away from the policy that acted, so that ratios are not all 1."""
    with torch.no_grad():
        for parameter in (*agent.policy.parameters(), *agent.value.parameters()):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    return agent


@pytest.mark.parametrize("discrete", [True, False])
def test_policy_value_and_entropy_terms_are_those_of_torchrl(discrete: bool) -> None:
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
    from torch.distributions import Categorical, Independent, Normal
    from torchrl.objectives import ClipPPOLoss

    agent = agent_of(discrete=discrete)
    batch = batch_of(agent)
    moved(agent)
    state = agent.representation.encode(batch.views, batch.mask).state.detach()

    def diagonal(loc: Tensor, scale: Tensor) -> Any:
        return Independent(Normal(loc, scale), 1)

    keys_out = ["logits"] if discrete else ["loc", "scale"]

    def head(state: Tensor) -> Any:
        return agent.policy(state) if discrete else (agent.policy(state), agent.log_std.exp().expand(len(state), -1))

    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(_Call(head), ["state"], keys_out),
        ProbabilisticTensorDictModule(
            keys_out, ["action"], distribution_class=Categorical if discrete else diagonal, return_log_prob=True
        ),
    )
    oracle = ClipPPOLoss(
        actor,
        TensorDictModule(agent.value, ["state"], ["state_value"]),
        clip_epsilon=agent.config.clip_coef,
        entropy_coeff=agent.config.entropy_coef,
        critic_coeff=agent.config.value_coef,
        normalize_advantage=True,
        clip_value=agent.config.clip_coef,
        loss_critic_type="l2",
    )
    log_prob_key = oracle.tensor_keys.sample_log_prob
    data = TensorDict(
        {
            "state": state,
            "action": batch.action,
            log_prob_key: batch.log_prob,
            "advantage": batch.advantage.unsqueeze(1),
            "value_target": batch.returns.unsqueeze(1),
            "state_value": batch.value.unsqueeze(1),
        },
        batch_size=[len(state)],
    )
    expected = {name: term.detach().item() for name, term in oracle(data).items() if term.numel() == 1}
    metrics = agent.update(batch)
    assert float(metrics["policy_loss"]) == pytest.approx(expected["loss_objective"], abs=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(expected["entropy"], abs=1e-5)
    # TorchRL has no half.
    assert float(2 * agent.config.value_coef * metrics["value_loss"]) == pytest.approx(
        expected["loss_critic"], rel=1e-5
    )
    assert float(metrics["clip_fraction"]) > 0.1, "the bound was felt"


class _Call(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, state: Tensor) -> Any:
        return self.function(state)


@pytest.mark.parametrize("beyond", [True, False])
def test_a_ratio_beyond_its_bound_on_the_side_that_pays_has_no_gradient(beyond: bool) -> None:
    agent = agent_of(entropy_coef=0.0, value_coef=0.0, clip_coef=0.1)
    batch = batch_of(agent)
    sign = torch.where(torch.arange(16) < 8, 1.0, -1.0)
    # Good actions are twice as likely as when they were taken and bad ones half as likely; or the other way round.
    log_ratio = 0.6931 * sign * (1 if beyond else -1)
    before = [parameter.clone() for parameter in agent.parameters()]
    agent.update(batch._replace(log_prob=batch.log_prob - log_ratio, advantage=sign))
    assert all(map(torch.equal, before, agent.parameters())) == beyond


@pytest.mark.quality("S9")
def test_the_reward_has_no_gradient_and_the_discriminator_is_left_to_itself() -> None:
    agent = agent_of("mem")
    mem: Any = agent.representation
    rollout = rollout_of(agent)
    features: Any = rollout.features
    for part in (rollout.reward_int, rollout.advantage, *features):
        assert not part.requires_grad
    discriminator, own_step = [parameter.clone() for parameter in mem.discriminator.parameters()], mem.update
    mem.update = lambda *_: {}
    agent.update(rollout.get_minibatch(torch.arange(16)))
    assert all(map(torch.equal, discriminator, mem.discriminator.parameters()))
    mem.update = own_step
    agent.update(rollout.get_minibatch(torch.arange(16)))
    assert not all(map(torch.equal, discriminator, mem.discriminator.parameters()))


@pytest.mark.parametrize("method", ["mem", "re3", "ride", "pixel+mem"])
def test_the_bonus_is_added_to_what_the_advantages_are_made_of(method: str) -> None:
    agent = agent_of(method, normalize_rewards=False)
    rollout = rollout_of(agent)
    assert rollout.reward_int.shape == (STEPS, ENVS)
    assert rollout.reward_int.abs().sum() > 0
    bare = agent_of(method, normalize_rewards=False)
    bare.beta = lambda _: 0.0
    paid = rollout.advantage - rollout_of(bare).advantage
    assert torch.allclose(paid[-1], 0.1 * rollout.reward_int[-1], atol=1e-5), "of the last step nothing follows"


def test_rewards_are_scaled_and_the_bonus_is_not() -> None:
    """Only the last step is looked at, of whose advantage nothing that follows is a part."""
    agent, bare = agent_of("re3"), agent_of("re3")
    bare.beta = lambda _: 0.0
    rollout, without = rollout_of(agent), rollout_of(bare)
    assert torch.allclose(rollout.advantage[-1] - without.advantage[-1], 0.1 * rollout.reward_int[-1], atol=1e-5)
    unit = agent_of("re3").reward_normalizer(without.reward_ext, without.done)
    unscaled = rollout_of(agent_of("none", normalize_rewards=False))
    assert torch.allclose(without.advantage[-1] - unscaled.advantage[-1], unit[-1] - unscaled.reward_ext[-1], atol=1e-5)
    assert not torch.allclose(unit, without.reward_ext, atol=1e-2)


def test_each_environment_is_searched_by_itself_or_all_together() -> None:
    alone, pooled = (agent_of("mem", neighbors=how) for how in ("env", "pooled"))
    first, second = rollout_of(alone), rollout_of(pooled)
    assert torch.equal(first.frames, second.frames)
    bonus: Any = alone.bonus
    features: Any = first.features
    one = map_features(features, lambda part: part[:STEPS, 2])
    assert torch.allclose(first.reward_int[:, 2], bonus.entropy.compute_reward(one), atol=1e-6)
    assert (second.reward_int <= first.reward_int + 1e-6).all(), "among more states none is farther from its neighbours"
    assert (second.reward_int < first.reward_int - 1e-3).any()


def test_the_bonus_of_an_episode_is_counted_over_its_rollouts() -> None:
    sums = EpisodeReturns(2)
    ended = torch.zeros(3, 2, dtype=torch.bool)
    ended[1, 0] = True
    reward = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    assert sums(reward, ended).tolist() == [3.0]
    assert sums(reward, ended.roll(1, 1)).tolist() == [100.0]  # 70 of the rollout before
    assert sums.returns.tolist() == [11.0, 40.0]


def test_going_back_keeps_what_running_episodes_have_been_paid() -> None:
    agent = agent_of("re3")
    before = deepcopy(agent.get_state())
    rollout_of(agent)
    paid = [agent.reward_normalizer.returns.clone(), agent.bonus_returns.returns.clone()]
    assert all(sums.any() for sums in paid)
    agent.rollback(before)
    assert torch.equal(agent.reward_normalizer.returns, paid[0])
    assert torch.equal(agent.bonus_returns.returns, paid[1])


@pytest.mark.quality("S3")
@pytest.mark.parametrize("field", ["advantage", "returns", "log_prob"])
def test_an_update_that_is_not_finite_changes_nothing(field: str) -> None:
    agent = agent_of("mem")
    batch = batch_of(agent)
    before = agent.get_state()
    with pytest.raises(NonFiniteError):
        agent.update(batch._replace(**{field: torch.full((16,), torch.nan)}))
    after = agent.get_state()
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), name


def test_noise_is_by_step_and_row_and_another_one_in_evaluations() -> None:
    agent = agent_of()
    views, mask = torch.randint(256, (64, 2, *IMAGE), dtype=torch.uint8), torch.ones(64, 2).bool()
    first = agent.act(views, mask, step=5, explore=True)
    assert torch.equal(first, agent.act(views, mask, step=5, explore=True))
    assert not torch.equal(first, agent.act(views, mask, step=6, explore=True))
    assert not torch.equal(first, agent.act(views, mask, step=5, explore=False))
    greedy = agent_of(greedy_evaluation=True)
    steps = [greedy.act(views, mask, step=step, explore=False) for step in (5, 6)]
    assert torch.equal(*steps)


def test_a_minibatch_of_one_row_is_learned_from_too() -> None:
    agent = agent_of("mem")
    metrics = agent.update(rollout_of(agent).get_minibatch(torch.tensor([3])))
    assert all(metric.isfinite() for metric in metrics.values())


def test_explained_is_the_share_of_the_returns_that_the_values_knew() -> None:
    returns = torch.arange(12.0).view(3, 4)
    assert explained_variance(returns, torch.zeros(3, 4)) == 1
    assert explained_variance(torch.full((3, 4), 7.0), returns - 7) == 0
    assert explained_variance(-returns, 2 * returns) < 0
    assert explained_variance(torch.zeros(3, 4), torch.zeros(3, 4)) == 1  # nothing was to be known
