"""MEM's bonus r̂ on the encoder of the policy or on a separate encoder."""

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyview.data import Batch, DerivedViews, Minibatch, RolloutBuffer
from manyview.data.action_spec import ActionSpec
from manyview.mem import EntropyBonus, Features, MEMRepresentation, MEMRepresentationConfig
from manyview.methods import (
    BONUSES,
    BuildContext,
    MEMBonus,
    MEMBonusConfig,
    OwnEncoderConfig,
    PixelEncoder,
    PixelEncoderConfig,
)
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, VIEW_NAMES, make_agent, make_batch

ROWS = 16
PARTIAL_MASK = torch.arange(2 * ROWS).view(ROWS, 2) % 5 > 0  # some views are absent, never both of a row
AGENT_NAMES = ("drqv2", "sac")
REWARDED_STATES = ("current", "next")


def make_bonus(*, encoder: dict[str, Any] | None = None, **settings: Any) -> MEMBonus:
    """Return a bonus with its own encoder, beside a pixel encoder of the policy."""
    torch.manual_seed(0)
    encoder_config = OwnEncoderConfig(**{"trunk": "tiny", "latent_dim": 8, "lr": 1e-2, **(encoder or {})})
    context = BuildContext(
        view_names=VIEW_NAMES,
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(ACTION_SIZE, discrete=False),
        seed=0,
        representation=PixelEncoder(len(VIEW_NAMES), IMAGE_SHAPE, PixelEncoderConfig(trunk="tiny", latent_dim=8)),
    )
    bonus: MEMBonus = BONUSES["mem"].build(MEMBonusConfig(encoder=encoder_config, **settings), context)
    return bonus


def test_an_evaluation_finds_demonstrated_rows_in_the_bank() -> None:
    """Their indices are negative, as are those of rows without an index."""
    torch.manual_seed(0)
    mem = MEMRepresentation(VIEW_NAMES, IMAGE_SHAPE, MEMRepresentationConfig(trunk="tiny", latent_dim=8))
    entropy = EntropyBonus(len(VIEW_NAMES), 8, MEMBonusConfig(bank=32, k=1))
    features = mem.encode(make_batch(8).views).detach()
    entropy.compute_reward(features, indices=-2 - torch.arange(8))
    assert entropy.evaluate_reward(features)[0].tolist() == [0.0] * 8


def make_masked_batch(seed: int = 0) -> Batch:
    """Return a batch with absent views and repeated indices, others in s_{t+n}."""
    return make_batch(ROWS, seed=seed)._replace(
        mask=PARTIAL_MASK,
        next_mask=PARTIAL_MASK.flip(0),
        indices=torch.arange(ROWS) // 2,
        next_indices=torch.arange(ROWS) % 5,
    )


def compute_reward_by_loops(features: Features, indices: Tensor, *, k: int) -> Tensor:
    """Return Eq. 9 by loops: the mean of log(1 + k-th distance) over present terms."""
    terms = [points.detach().double() for points in (*features.specific.unbind(1), features.shared_mean)]
    present = [*features.mask.unbind(1), features.mask.any(1)]
    rewards = []
    for row in range(len(indices)):
        logs = []
        for points, is_present in zip(terms, present, strict=True):
            if not is_present[row]:
                continue
            others = [other for other in range(len(indices)) if is_present[other] and indices[other] != indices[row]]
            distances = sorted(float((points[row] - points[other]).square().sum().sqrt()) for other in others)
            logs.append(torch.tensor(1 + distances[k - 1]).double().log())
        rewards.append(torch.stack(logs).mean())
    return torch.stack(rewards)


def get_state(data: Batch, state: str) -> tuple[Tensor, Tensor, Tensor]:
    if state == "next":
        return data.next_views, data.next_mask, data.next_indices
    return data.views, data.mask, data.indices


def get_parameters(module: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def assert_all_equal(before: list[Tensor], module: Any) -> None:
    assert all(map(torch.equal, before, module.parameters()))


@torch.no_grad()
def perturb(module: Any) -> None:
    for parameter in module.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("state", REWARDED_STATES)
def test_the_reward_is_eq_9_on_features_of_its_own_encoder(state: str) -> None:
    bonus, data = make_bonus(rewarded_state=state, k=2), make_masked_batch()
    views, mask, indices = get_state(data, state)
    expected = compute_reward_by_loops(bonus.encode(views, mask), indices, k=2)
    actual = bonus.compute(data, None, torch.zeros(ROWS))
    assert not actual.requires_grad
    assert actual.std() > 0.01
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("state", REWARDED_STATES)
def test_computing_the_reward_builds_no_graph(state: str) -> None:
    bonus, graphs = make_bonus(rewarded_state=state), list[bool]()
    bonus.encoder.encoder.register_forward_hook(lambda _, __, features: graphs.append(features.state.requires_grad))
    bonus.compute(make_masked_batch(), None, torch.zeros(ROWS))
    bonus.reward_states(make_masked_batch().views, PARTIAL_MASK)
    assert graphs == [False, False]


def test_the_bank_and_scales_are_those_of_the_entropy_bonus() -> None:
    settings: dict[str, Any] = {
        "bank": 24,
        "reward_scale": "centered",
        "distance_scale": "relative",
        "entropy": "joint",
    }
    bonus = make_bonus(**settings)
    entropy = EntropyBonus(len(VIEW_NAMES), 8, bonus.config)
    for seed in range(3):
        data = make_masked_batch(seed)
        expected = entropy.compute_reward(bonus.encode(data.views, data.mask), indices=data.indices)
        assert bonus.compute(data, None, torch.zeros(ROWS)).equal(expected)
    for buffer, expected_buffer in zip(bonus.entropy.buffers(), entropy.buffers(), strict=True):
        assert buffer.equal(expected_buffer)


def test_the_next_state_is_rewarded_like_a_current_state() -> None:
    current_bonus, next_bonus, data = make_bonus(), make_bonus(rewarded_state="next"), make_masked_batch()
    shifted_data = data._replace(views=data.next_views, mask=data.next_mask, indices=data.next_indices)
    actual = next_bonus.compute(data, None, torch.zeros(ROWS))
    assert actual.equal(current_bonus.compute(shifted_data, None, torch.zeros(ROWS)))
    assert not actual.allclose(current_bonus.compute(data, None, torch.zeros(ROWS)), atol=1e-3)


def test_rewarding_states_of_an_evaluation_changes_nothing() -> None:
    bonus, data = make_bonus(bank=24, reward_scale="std"), make_masked_batch()
    bonus.compute(data, None, torch.zeros(ROWS))
    before = deepcopy(bonus.state_dict())
    actual = bonus.reward_states(data.next_views, data.next_mask)
    expected = bonus.entropy.evaluate_reward(bonus.encode(data.next_views, data.next_mask))[1]
    assert actual.equal(expected)
    assert all(tensor.equal(before[name]) for name, tensor in bonus.state_dict().items())


class ReferenceAdam:
    """Adam in float64 that updates a list of tensors in place."""

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        self.parameters, self.lr, self.count = parameters, lr, 0
        self.first, self.second = ([torch.zeros_like(parameter).double() for parameter in parameters] for _ in range(2))

    @torch.no_grad()
    def step(self, gradients: list[Tensor | None]) -> None:
        self.count += 1
        for index, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            if gradient is None:
                continue
            self.first[index] = 0.9 * self.first[index] + 0.1 * gradient.double()
            self.second[index] = 0.999 * self.second[index] + 0.001 * gradient.double().square()
            mean = self.first[index] / (1 - 0.9**self.count)
            spread = (self.second[index] / (1 - 0.999**self.count)).sqrt() + 1e-8
            parameter.copy_(parameter.double() - self.lr * mean / spread)


@pytest.mark.parametrize("temporal_coef", [0.0, 0.5])
def test_an_update_is_an_adam_step_of_the_encoder_and_of_the_discriminator(temporal_coef: float) -> None:
    bonus = make_bonus(encoder={"temporal_coef": temporal_coef, "discriminator_lr": 2e-2})
    expected: MEMRepresentation = deepcopy(bonus.encoder)
    encoder = ReferenceAdam(list(expected.encoder.parameters()), lr=1e-2)
    discriminator = ReferenceAdam(list(expected.discriminator.parameters()), lr=2e-2)
    initial_parameters = get_parameters(bonus.encoder.encoder)
    for seed in range(3):
        data = make_masked_batch(seed)
        features = expected.encode(data.views, data.mask)
        next_features = expected.encode(data.next_views, data.next_mask).detach()
        loss, _ = expected.compute_loss(features, next_features if temporal_coef else None)
        gradients = torch.autograd.grad(loss, encoder.parameters, allow_unused=True)
        # The discriminator chooses among the present views of a row.
        logits = expected.discriminator(features.shared.detach()).masked_fill(~data.mask.unsqueeze(1), -torch.inf)
        view_labels = torch.arange(len(VIEW_NAMES)).expand(ROWS, -1)
        discriminator_loss = F.cross_entropy(logits[data.mask], view_labels[data.mask])
        metrics = bonus.update(data)
        torch.testing.assert_close(metrics["bonus_mem_loss"], loss.detach())
        norm = sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None) ** 0.5
        assert float(metrics["bonus_grad_norm"]) == pytest.approx(norm, rel=1e-4)
        torch.testing.assert_close(metrics["bonus_discriminator_loss"], discriminator_loss.detach())
        discriminator.step(list(torch.autograd.grad(discriminator_loss, discriminator.parameters)))
        encoder.step(list(gradients))
    for name, parameter in bonus.encoder.named_parameters():
        torch.testing.assert_close(parameter, expected.get_parameter(name), rtol=1e-4, atol=1e-5, msg=name)
    has_changed = [
        not old.equal(new) for old, new in zip(initial_parameters, bonus.encoder.encoder.parameters(), strict=True)
    ]
    assert sum(has_changed) == len(has_changed) - 1, "all but the token of an absent view, which L_total does not see"


def test_an_update_lowers_l_total() -> None:
    bonus, data = make_bonus(), make_masked_batch()
    losses = [float(bonus.update(data)["bonus_mem_loss"]) for _ in range(15)]
    assert losses[-1] < losses[0] - 0.1


def test_an_update_does_not_change_bank_and_scales() -> None:
    bonus = make_bonus(bank=24, reward_scale="std", distance_scale="relative")
    bonus.compute(make_masked_batch(), None, torch.zeros(ROWS))
    before = deepcopy(bonus.entropy.state_dict())
    bonus.update(make_masked_batch(1))
    assert all(tensor.equal(before[name]) for name, tensor in bonus.entropy.state_dict().items())


def make_minibatch(data: Batch, has_next: Tensor) -> Minibatch:
    zeros = torch.zeros(ROWS)
    return Minibatch(
        views=data.views,
        mask=data.mask,
        action=data.action,
        log_prob=zeros,
        value=zeros,
        advantage=zeros,
        returns=zeros,
        next_features=None,
        next_views=data.next_views,
        next_mask=data.next_mask,
        has_next=has_next,
    )


def test_rows_of_a_rollout_without_a_next_step_have_no_temporal_loss() -> None:
    data, has_next = make_masked_batch(), torch.arange(ROWS) % 3 > 0
    other = data._replace(next_views=torch.where(has_next.view(-1, 1, 1, 1, 1), data.next_views, data.views.flip(0)))
    parameters = []
    for batch, next_rows in ((data, has_next), (other, has_next), (data, has_next.logical_not())):
        bonus = make_bonus(encoder={"temporal_coef": 1.0})
        bonus.update(make_minibatch(batch, next_rows))
        parameters.append(get_parameters(bonus.encoder))
    assert all(map(torch.equal, parameters[0], parameters[1]))
    assert not all(map(torch.equal, parameters[0], parameters[2]))


@pytest.mark.parametrize("agent_name", AGENT_NAMES)
def test_the_agents_losses_do_not_reach_the_bonus_encoder(agent_name: str) -> None:
    agent = make_agent(agent_name, "pixel+mem")
    bonus: Any = agent.bonus
    bonus.update, before = lambda _: {}, get_parameters(bonus.encoder)
    for step in range(3):
        agent.update(make_masked_batch(step), step)
    assert_all_equal(before, bonus.encoder)
    assert all(parameter.grad is None for parameter in bonus.encoder.parameters())


@pytest.mark.parametrize("agent_name", AGENT_NAMES)
def test_actions_and_rewards_do_not_affect_the_bonus_encoder(agent_name: str) -> None:
    first_agent, second_agent = (make_agent(agent_name, "pixel+mem") for _ in range(2))
    for step in range(3):
        data = make_masked_batch(step)
        first_agent.update(data, step)
        second_agent.update(data._replace(reward_ext=5 - data.reward_ext, action=-data.action), step)
    for agent in (first_agent, second_agent):
        assert isinstance(agent.bonus, MEMBonus)
    assert_all_equal(get_parameters(first_agent.bonus), second_agent.bonus)
    assert not all(map(torch.equal, first_agent.representation.parameters(), second_agent.representation.parameters()))


@pytest.mark.parametrize("agent_name", AGENT_NAMES)
def test_the_bonus_losses_do_not_reach_the_policy(agent_name: str) -> None:
    """With `beta` 0 the bonus does not affect the agent, trained or not."""
    training_agent, frozen_agent = (make_agent(agent_name, "pixel+mem") for _ in range(2))
    frozen_bonus: Any = frozen_agent.bonus
    frozen_bonus.update = lambda _: {}
    for agent in (training_agent, frozen_agent):
        agent.beta = lambda _: 0.0
    for step in range(3):
        for agent in (training_agent, frozen_agent):
            agent.update(make_masked_batch(step), step)
    for part in ("representation", "actor", "critic"):
        assert_all_equal(get_parameters(getattr(training_agent, part)), getattr(frozen_agent, part))
    assert not all(map(torch.equal, get_parameters(training_agent.bonus), frozen_bonus.parameters()))


@pytest.mark.parametrize("agent_name", AGENT_NAMES)
def test_beta_affects_the_critic(agent_name: str) -> None:
    first_agent, second_agent = (make_agent(agent_name, "pixel+mem") for _ in range(2))
    second_agent.beta = lambda _: 5.0
    for agent in (first_agent, second_agent):
        agent.update(make_masked_batch(), 0)
    assert not all(map(torch.equal, first_agent.critic.parameters(), second_agent.critic.parameters()))


def compute_agent_bonus(agent: Any, data: Batch) -> Tensor:
    bonus: Tensor = agent.compute_bonus(data, agent.encode_batch(data), torch.zeros(2, ROWS))
    return bonus


@pytest.mark.parametrize("agent_name", AGENT_NAMES)
@pytest.mark.parametrize("state", REWARDED_STATES)
@pytest.mark.parametrize("frames", ["augmented", "clean"])
def test_a_shared_encoder_is_the_policys_and_rewards_the_chosen_state(agent_name: str, state: str, frames: Any) -> None:
    agent: Any = make_agent(
        agent_name,
        "mem",
        reward_frames=frames,
        shift_pixels=0,
        bonus_changes={"rewarded_state": state},
        encoder_tau=0.5,
    )
    assert agent.bonus.encoder is agent.representation
    perturb(agent.target_representation)
    data = make_masked_batch()
    views, mask, indices = get_state(data, state)
    expected = compute_reward_by_loops(agent.representation.encode(views, mask), indices, k=3)
    torch.testing.assert_close(compute_agent_bonus(agent, data).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("agent_name", AGENT_NAMES)
@pytest.mark.parametrize("state", REWARDED_STATES)
def test_a_target_encoder_rewards_by_the_target_features(agent_name: str, state: str) -> None:
    changes = {"target_encoder": True, "rewarded_state": state}
    agent: Any = make_agent(
        agent_name, "mem", reward_frames="augmented", shift_pixels=0, bonus_changes=changes, encoder_tau=0.5
    )
    perturb(agent.target_representation)
    data = make_masked_batch()
    views, mask, indices = get_state(data, state)
    target, online = (
        compute_reward_by_loops(encoder.encode(views, mask), indices, k=3)
        for encoder in (agent.target_representation, agent.representation)
    )
    actual = compute_agent_bonus(agent, data).double()
    torch.testing.assert_close(actual, target, rtol=1e-4, atol=1e-5)
    assert not actual.allclose(online, atol=1e-2)


def test_a_shared_encoder_is_not_updated_by_the_bonus() -> None:
    agent: Any = make_agent("drqv2", "mem")
    before = get_parameters(agent.representation)
    assert agent.bonus.update(make_masked_batch()) == {}
    assert_all_equal(before, agent.representation)
    assert agent.bonus.optimizer is None


@pytest.mark.parametrize(
    ("settings", "source", "stored_source"),
    [
        ({"reward_frames": "augmented"}, "online", None),
        ({"reward_frames": "augmented", "target_encoder": True}, "target", None),
        ({"reward_frames": "clean"}, None, None),
        ({"search": "buffer"}, None, "online"),
        ({"search": "buffer", "target_encoder": True}, None, "target"),
        ({"encoder": OwnEncoderConfig(trunk="tiny", latent_dim=8)}, None, None),
        ({"encoder": OwnEncoderConfig(trunk="tiny", latent_dim=8), "search": "buffer"}, None, None),
    ],
)
def test_the_agents_features_are_used_where_frames_and_encoder_are_its_own(
    settings: dict[str, Any], source: str | None, stored_source: str | None
) -> None:
    encoder = MEMRepresentation(VIEW_NAMES, IMAGE_SHAPE, MEMRepresentationConfig(trunk="tiny", latent_dim=8))
    bonus = MEMBonus(encoder, MEMBonusConfig(**settings))
    assert bonus.feature_source == source
    assert bonus.stored_feature_source == stored_source
    assert bonus.compares_rows == (source is not None)
    assert bonus.shares_encoder == ("encoder" not in settings)


@pytest.mark.parametrize(("coef", "is_own"), [*product((0.0, 0.1), (True, False))])
def test_next_views_are_used_by_the_temporal_loss_of_an_own_encoder_alone(coef: float, is_own: bool) -> None:
    encoder_config = OwnEncoderConfig(trunk="tiny", latent_dim=8, temporal_coef=coef)
    bonus = MEMBonus(
        MEMRepresentation(VIEW_NAMES, IMAGE_SHAPE, encoder_config),
        MEMBonusConfig(encoder=encoder_config if is_own else None),
    )
    assert bonus.uses_next_views == (is_own and coef > 0)


def test_a_search_of_the_buffer_needs_the_samplers_distances() -> None:
    agent: Any = make_agent("sac", "mem", bonus_changes={"search": "buffer"})
    with pytest.raises(ValueError, match="batch without neighbor_distances: expected a sampler"):
        agent.update(make_masked_batch(), 0)


def test_the_bonus_gets_its_own_encoder_unless_the_representation_is_mem() -> None:
    config = MEMBonusConfig(k=5)
    assert config.fit_representation(MEMRepresentationConfig()) is config
    assert config.fit_representation(PixelEncoderConfig()) == replace(config, encoder=OwnEncoderConfig())
    explicit_config = MEMBonusConfig(encoder=OwnEncoderConfig(lr=1e-2))
    assert explicit_config.fit_representation(PixelEncoderConfig()) is explicit_config


def test_a_bonus_without_an_encoder_cannot_be_built() -> None:
    context = BuildContext(
        view_names=VIEW_NAMES,
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(ACTION_SIZE, discrete=False),
        seed=0,
        representation=PixelEncoder(2, IMAGE_SHAPE, PixelEncoderConfig(trunk="tiny")),
    )
    with pytest.raises(
        ValueError, match=r"bonus\.encoder: expected settings, got None, which needs representation=mem"
    ):
        BONUSES["mem"].build(MEMBonusConfig(), context)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan")])
def test_the_learning_rate_must_be_more_than_zero(lr: float) -> None:
    with pytest.raises(ValueError, match="lr: expected more than 0"):
        OwnEncoderConfig(lr=lr)


@pytest.mark.parametrize("window", [None, 12])
def test_a_rollout_is_rewarded_by_the_bonus_encoder(window: int | None) -> None:
    steps, envs = 6, 2
    rollout = RolloutBuffer(
        num_steps=steps,
        num_envs=envs,
        image_shape=IMAGE_SHAPE,
        num_cameras=len(VIEW_NAMES),
        action_shape=(),
        action_dtype=torch.int64,
        derived_views=DerivedViews(seed=0),
        device=torch.device("cpu"),
    )
    rollout.frames.random_(256, generator=torch.Generator().manual_seed(1))
    rollout.mask.fill_(value=True)
    bonus = make_bonus(k=2)
    actual = bonus.compute_rollout(rollout, None, window=window)
    assert not actual.requires_grad
    frames = rollout.frames[:steps]  # [T, E, V, C, H, W], without the observation after the last step
    if window is None:
        for env in range(envs):
            features = bonus.encode(frames[:, env])
            expected = compute_reward_by_loops(features, torch.arange(steps), k=2)
            torch.testing.assert_close(actual[:, env].double(), expected, rtol=1e-4, atol=1e-5)
    else:
        expected = compute_reward_by_loops(bonus.encode(frames.flatten(0, 1)), torch.arange(steps * envs), k=2)
        torch.testing.assert_close(actual.flatten().double(), expected, rtol=1e-4, atol=1e-5)


def test_the_reward_stays_float32_under_bfloat16_autocast() -> None:
    bonus = make_bonus()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bonus.compute(make_masked_batch(), None, torch.zeros(ROWS)).dtype == torch.float32
        assert all(value.dtype == torch.float32 for value in bonus.update(make_masked_batch()).values())
