"""One update of PPO: losses against TorchRL and by hand, and which parts it changes."""

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


def make_agent(method: str = "none", *, discrete: bool = True, **config: Any) -> PPO:
    torch.manual_seed(0)
    pixel = PixelEncoder(2, IMAGE, PixelEncoderConfig(latent_dim=8, trunk="tiny"))
    mem = MEMRepresentation(["a", "b"], IMAGE, MEMRepresentationConfig(latent_dim=8, trunk="tiny"))
    representation: Any = mem if method == "mem" else pixel
    own_encoder = OwnEncoderConfig(latent_dim=8, trunk="tiny")
    bonus: Any = {
        "mem": MEMBonus(mem, MEMBonusConfig()),
        "pixel+mem": MEMBonus(mem, MEMBonusConfig(encoder=own_encoder)),
        "none": None,
        "re3": RE3(2, IMAGE, RE3Config(latent_dim=8, trunk="tiny")),
        "ride": RIDE(2, IMAGE, 3, RIDEConfig(latent_dim=8, trunk="tiny", hidden=16), discrete=discrete),
    }[method]
    settings = PPOConfig(**{"hidden": 16, "batch_size": 16, **config})
    beta = (lambda _: 0.1) if bonus is not None else (lambda _: 0.0)
    return PPO(representation, ActionSpec(3, discrete=discrete), settings, num_envs=ENVS, bonus=bonus, beta=beta)


def make_rollout(agent: PPO, *, seed: int = 0) -> RolloutBuffer:
    """Return a rollout of the agent on random images and rewards."""
    generator = torch.Generator().manual_seed(seed)

    def draw_images() -> tuple[Tensor, Tensor]:
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
    rollout.reset(*draw_images(), first_step=0)
    for step in range(STEPS + 1):
        action, log_prob, value, features = agent.act_and_value(*rollout.get_observation(), step=step)
        stored_features = features if agent.stores_features else None
        if step == STEPS:
            rollout.finish(value, stored_features)
            break
        views, mask = draw_images()
        is_end = torch.rand(2, ENVS, generator=generator) < 0.2
        rollout.add(
            action,
            log_prob,
            value,
            stored_features,
            reward=torch.randn(ENVS, generator=generator),
            terminated=is_end[0],
            truncated=is_end[1] & ~is_end[0],
            final_value=torch.randn(ENVS, generator=generator),
            views=views,
            mask=mask,
        )
    agent.compute_advantages(rollout, 0)
    return rollout


@pytest.mark.quality("S3")
def test_a_rollback_resets_non_finite_bonus_returns() -> None:
    agent = make_agent("re3")
    make_rollout(agent)
    state = deepcopy(agent.get_state())
    agent.bonus_returns.returns[:2] = torch.tensor([float("nan"), float("inf")])
    agent.reward_normalizer.returns[3] = 2.5
    agent.rollback(state)
    agent.load_state(agent.get_state())
    assert agent.bonus_returns.returns[:2].tolist() == [0, 0]
    assert agent.reward_normalizer.returns[3] == 2.5, "running episodes keep their returns"


def make_minibatch(agent: PPO, *, rows: int = 16, seed: int = 0) -> Minibatch:
    return make_rollout(agent, seed=seed).get_minibatch(torch.arange(rows), with_next=True)


def perturb_parameters(agent: PPO) -> PPO:
    """Perturb the parameters in place, so that ratios differ from 1."""
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

    agent = make_agent(discrete=discrete)
    batch = make_minibatch(agent)
    perturb_parameters(agent)
    state = agent.representation.encode(batch.views, batch.mask).state.detach()

    def diagonal(loc: Tensor, scale: Tensor) -> Any:
        return Independent(Normal(loc, scale), 1)

    keys_out = ["logits"] if discrete else ["loc", "scale"]

    def head(state: Tensor) -> Any:
        return agent.policy(state) if discrete else (agent.policy(state), agent.log_std.exp().expand(len(state), -1))

    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(_FunctionModule(head), ["state"], keys_out),
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
    assert float(metrics["clip_fraction"]) > 0.1, "some ratios are clipped"


class _FunctionModule(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, state: Tensor) -> Any:
        return self.function(state)


@pytest.mark.parametrize("is_clipped", [True, False])
def test_a_clipped_ratio_has_no_gradient(is_clipped: bool) -> None:
    agent = make_agent(entropy_coef=0.0, value_coef=0.0, clip_coef=0.1)
    batch = make_minibatch(agent)
    sign = torch.where(torch.arange(16) < 8, 1.0, -1.0)
    # Good actions are twice as likely as when they were taken and bad ones half as likely; or the other way round.
    log_ratio = 0.6931 * sign * (1 if is_clipped else -1)
    before = [parameter.clone() for parameter in agent.parameters()]
    agent.update(batch._replace(log_prob=batch.log_prob - log_ratio, advantage=sign))
    assert all(map(torch.equal, before, agent.parameters())) == is_clipped


@pytest.mark.quality("S9")
def test_rewards_have_no_gradient_and_the_update_of_the_policy_keeps_the_discriminator() -> None:
    agent = make_agent("mem")
    mem: Any = agent.representation
    rollout = make_rollout(agent)
    features: Any = rollout.features
    for part in (rollout.reward_int, rollout.advantage, *features):
        assert not part.requires_grad
    discriminator, update_mem = [parameter.clone() for parameter in mem.discriminator.parameters()], mem.update
    mem.update = lambda *_: {}
    agent.update(rollout.get_minibatch(torch.arange(16)))
    assert all(map(torch.equal, discriminator, mem.discriminator.parameters()))
    mem.update = update_mem
    agent.update(rollout.get_minibatch(torch.arange(16)))
    assert not all(map(torch.equal, discriminator, mem.discriminator.parameters()))


@pytest.mark.parametrize("method", ["mem", "re3", "ride", "pixel+mem"])
def test_the_bonus_is_part_of_the_advantages(method: str) -> None:
    agent = make_agent(method, normalize_rewards=False)
    rollout = make_rollout(agent)
    assert rollout.reward_int.shape == (STEPS, ENVS)
    assert rollout.reward_int.abs().sum() > 0
    agent_without_bonus = make_agent(method, normalize_rewards=False)
    agent_without_bonus.beta = lambda _: 0.0
    difference = rollout.advantage - make_rollout(agent_without_bonus).advantage
    assert torch.allclose(difference[-1], 0.1 * rollout.reward_int[-1], atol=1e-5), "nothing follows the last step"


def test_rewards_are_normalized_and_the_bonus_is_not() -> None:
    """Only the last step is compared, as no later step enters its advantage."""
    agent, agent_without_bonus = make_agent("re3"), make_agent("re3")
    agent_without_bonus.beta = lambda _: 0.0
    rollout, rollout_without_bonus = make_rollout(agent), make_rollout(agent_without_bonus)
    assert torch.allclose(
        rollout.advantage[-1] - rollout_without_bonus.advantage[-1], 0.1 * rollout.reward_int[-1], atol=1e-5
    )
    normalized = make_agent("re3").reward_normalizer(rollout_without_bonus.reward_ext, rollout_without_bonus.done)
    raw_rollout = make_rollout(make_agent("none", normalize_rewards=False))
    assert torch.allclose(
        rollout_without_bonus.advantage[-1] - raw_rollout.advantage[-1],
        normalized[-1] - raw_rollout.reward_ext[-1],
        atol=1e-5,
    )
    assert not torch.allclose(normalized, rollout_without_bonus.reward_ext, atol=1e-2)


def test_neighbors_are_searched_per_environment_or_pooled() -> None:
    env_agent, pooled_agent = (make_agent("mem", neighbors=neighbors) for neighbors in ("env", "pooled"))
    env_rollout, pooled_rollout = make_rollout(env_agent), make_rollout(pooled_agent)
    assert torch.equal(env_rollout.frames, pooled_rollout.frames)
    bonus: Any = env_agent.bonus
    features: Any = env_rollout.features
    env_features = map_features(features, lambda part: part[:STEPS, 2])
    assert torch.allclose(env_rollout.reward_int[:, 2], bonus.entropy.compute_reward(env_features), atol=1e-6)
    assert (pooled_rollout.reward_int <= env_rollout.reward_int + 1e-6).all(), (
        "more states never increase the distance of a neighbor"
    )
    assert (pooled_rollout.reward_int < env_rollout.reward_int - 1e-3).any()


def test_the_bonus_of_an_episode_is_summed_across_rollouts() -> None:
    episode_returns = EpisodeReturns(2)
    done = torch.zeros(3, 2, dtype=torch.bool)
    done[1, 0] = True
    reward = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    assert episode_returns(reward, done).tolist() == [3.0]
    assert episode_returns(reward, done.roll(1, 1)).tolist() == [100.0]  # 70 from the rollout before
    assert episode_returns.returns.tolist() == [11.0, 40.0]


def test_a_rollback_keeps_the_returns_of_running_episodes() -> None:
    agent = make_agent("re3")
    state = deepcopy(agent.get_state())
    make_rollout(agent)
    returns = [agent.reward_normalizer.returns.clone(), agent.bonus_returns.returns.clone()]
    assert all(tensor.any() for tensor in returns)
    agent.rollback(state)
    assert torch.equal(agent.reward_normalizer.returns, returns[0])
    assert torch.equal(agent.bonus_returns.returns, returns[1])


@pytest.mark.quality("S3")
@pytest.mark.parametrize("field", ["advantage", "returns", "log_prob"])
def test_an_update_that_is_not_finite_changes_nothing(field: str) -> None:
    agent = make_agent("mem")
    batch = make_minibatch(agent)
    before = agent.get_state()
    with pytest.raises(NonFiniteError):
        agent.update(batch._replace(**{field: torch.full((16,), torch.nan)}))
    after = agent.get_state()
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), name


def test_noise_depends_on_the_step_and_differs_in_evaluations() -> None:
    agent = make_agent()
    views, mask = torch.randint(256, (64, 2, *IMAGE), dtype=torch.uint8), torch.ones(64, 2).bool()
    first = agent.act(views, mask, step=5, explore=True)
    assert torch.equal(first, agent.act(views, mask, step=5, explore=True))
    assert not torch.equal(first, agent.act(views, mask, step=6, explore=True))
    assert not torch.equal(first, agent.act(views, mask, step=5, explore=False))
    greedy = make_agent(greedy_evaluation=True)
    steps = [greedy.act(views, mask, step=step, explore=False) for step in (5, 6)]
    assert torch.equal(*steps)


def test_an_update_with_a_minibatch_of_one_row_is_finite() -> None:
    agent = make_agent("mem")
    metrics = agent.update(make_rollout(agent).get_minibatch(torch.tensor([3])))
    assert all(metric.isfinite() for metric in metrics.values())


def test_explained_variance_equals_its_definition() -> None:
    returns = torch.arange(12.0).view(3, 4)
    assert explained_variance(returns, torch.zeros(3, 4)) == 1
    assert explained_variance(torch.full((3, 4), 7.0), returns - 7) == 0
    assert explained_variance(-returns, 2 * returns) < 0
    assert explained_variance(torch.zeros(3, 4), torch.zeros(3, 4)) == 1  # there was no variance to explain
