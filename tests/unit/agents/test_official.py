"""DrQ-v2 with `structure=official`, against the published agent in plain torch."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.agents import DrQv2, DrQv2Config
from manyview.config.overrides import apply_overrides
from manyview.config.presets import load_preset, make_config
from manyview.data import Batch
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.methods import PixelEncoder, PixelEncoderConfig

SHAPE, ACTIONS, HIDDEN, FEATURES, ROWS, SHIFT = (9, 24, 24), 2, 32, 10, 12, 2
STD_STEPS = 40
PIXEL = PixelEncoderConfig(projection=False)


def make_agent(**changes: Any) -> DrQv2:
    torch.manual_seed(0)
    config = DrQv2Config(
        structure="official", projection_dim=FEATURES, hidden=HIDDEN, lr=1e-3, std_steps=STD_STEPS, **changes
    )
    return DrQv2(PixelEncoder(1, SHAPE, PIXEL), ACTIONS, config, augmentation=ImageAugmentation("shift", SHIFT), seed=3)


def make_batch(seed: int) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    views, next_views = torch.randint(256, (2, ROWS, 1, *SHAPE), generator=rng, dtype=torch.uint8)
    present, rows = torch.ones(ROWS, 1, dtype=torch.bool), torch.arange(ROWS)
    reward, discount = 5 * torch.rand(ROWS, generator=rng), torch.rand(ROWS, generator=rng).round()
    action = 2 * torch.rand(ROWS, ACTIONS, generator=rng) - 1
    return Batch(views, present, action, reward, discount, next_views, present, rows, rows + 3)


class PublishedActor(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, FEATURES), nn.LayerNorm(FEATURES), nn.Tanh())
        self.policy = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, ACTIONS)
        )

    def sample(self, features: Tensor, std: float, noise: Tensor) -> Tensor:
        mean = torch.tanh(self.policy(self.trunk(features)))
        action = mean + torch.clamp(noise * std, -0.3, 0.3)
        bounded = torch.clamp(action, -1 + 1e-6, 1 - 1e-6)
        return action - action.detach() + bounded.detach()


def make_q_function() -> nn.Sequential:
    size = FEATURES + ACTIONS
    return nn.Sequential(nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


class PublishedCritic(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, FEATURES), nn.LayerNorm(FEATURES), nn.Tanh())
        self.q1, self.q2 = make_q_function(), make_q_function()

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([self.trunk(features), action], dim=-1)
        return self.q1(joined)[:, 0], self.q2(joined)[:, 0]


class PublishedAgent:
    """The published update, with the initial weights and random numbers of an agent."""

    def __init__(self, agent: DrQv2) -> None:
        layers = [nn.Conv2d(SHAPE[0], 32, 3, stride=2), *(nn.Conv2d(32, 32, 3, stride=1) for _ in range(3))]
        self.encoder = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), nn.Flatten())
        inputs = self.encoder(torch.zeros(1, *SHAPE)).shape[1]
        self.actor, self.critic = PublishedActor(inputs), PublishedCritic(inputs)
        for parameter, published_parameter in self.pair_parameters(agent):
            published_parameter.data.copy_(parameter.data)
        self.target = deepcopy(self.critic)
        self.optimizers = [
            torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.encoder, self.actor, self.critic)
        ]
        self.rng = torch.Generator().set_state(agent.generator.get_state())

    def pair_parameters(self, agent: DrQv2) -> list[tuple[Tensor, Tensor]]:
        """Return the parameters of both agents that correspond, in the order of the layers."""
        representation: Any = agent.representation
        modules = (representation.trunk, agent.actor, agent.critic.projection, *agent.critic.heads)
        published_modules = (self.encoder, self.actor, self.critic.trunk, self.critic.q1, self.critic.q2)
        return [
            pair
            for module, published_module in zip(modules, published_modules, strict=True)
            for pair in zip(module.parameters(), published_module.parameters(), strict=True)
        ]

    def shift(self, images: Tensor) -> Tensor:
        offsets = torch.randint(2 * SHIFT + 1, (2, len(images), 1), generator=self.rng)
        padded = F.pad(images.float(), (SHIFT,) * 4, mode="replicate")
        height, width = images.shape[-2:]
        return torch.stack(
            [
                image[:, down : down + height, right : right + width]
                for image, down, right in zip(padded, *offsets[..., 0].tolist(), strict=True)
            ]
        )

    def update(self, batch: Batch, std: float) -> tuple[float, float]:
        encoder_optimizer, actor_optimizer, critic_optimizer = self.optimizers
        images, next_images = self.shift(batch.views[:, 0]), self.shift(batch.next_views[:, 0])
        features = self.encoder(images / 255.0 - 0.5)
        with torch.no_grad():
            next_features = self.encoder(next_images / 255.0 - 0.5)
            next_action = self.actor.sample(next_features, std, torch.randn(ROWS, ACTIONS, generator=self.rng))
            target_q1, target_q2 = self.target(next_features, next_action)
            target = batch.reward_ext + batch.discount * torch.min(target_q1, target_q2)
        q1, q2 = self.critic(features, batch.action)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        for optimizer in (encoder_optimizer, critic_optimizer):
            optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        encoder_optimizer.step()

        features = features.detach()
        action = self.actor.sample(features, std, torch.randn(ROWS, ACTIONS, generator=self.rng))
        actor_loss = -torch.min(*self.critic(features, action)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        for target_parameter, parameter in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            target_parameter.data.copy_(0.01 * parameter.data + 0.99 * target_parameter.data)
        return critic_loss.item(), actor_loss.item()


def test_twenty_updates_are_those_of_the_published_agent() -> None:
    agent = make_agent()
    last_layer: Any = agent.actor[-1]
    last_layer.bias.data[0] = 2.0  # noise takes half of these actions beyond their bound
    published = PublishedAgent(agent)
    initial = [published_parameter.clone() for _, published_parameter in published.pair_parameters(agent)]
    for step in range(20):
        batch, std = make_batch(step), 1.0 + (0.1 - 1.0) * step / STD_STEPS
        metrics = agent.update(batch, step)
        critic_loss, actor_loss = published.update(batch, std)
        assert metrics["critic_loss"].item() == pytest.approx(critic_loss, rel=1e-5)
        assert metrics["actor_loss"].item() == pytest.approx(actor_loss, rel=1e-5, abs=1e-5)
    for (parameter, published_parameter), before in zip(published.pair_parameters(agent), initial, strict=True):
        torch.testing.assert_close(parameter, published_parameter, rtol=1e-5, atol=1e-5)
        assert not torch.equal(published_parameter, before), "every part is trained"
    target: Any = agent.target_critic
    for module, published_module in (
        (target.projection, published.target.trunk),
        (target.heads[1], published.target.q2),
    ):
        for parameter, published_parameter in zip(module.parameters(), published_module.parameters(), strict=True):
            torch.testing.assert_close(parameter, published_parameter, rtol=1e-5, atol=1e-5)


def test_the_initial_weights_are_orthogonal_as_published() -> None:
    agent: Any = make_agent()
    for layer in (agent.actor[0], agent.critic.projection[0]):
        torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(FEATURES), rtol=0, atol=1e-5)
        assert not layer.bias.any()
    kernels = agent.representation.trunk[2].weight.flatten(1)
    torch.testing.assert_close(kernels @ kernels.T, 2 * torch.eye(32), rtol=0, atol=1e-5)
    assert not torch.equal(agent.actor[0].weight, agent.critic.projection[0].weight)


def test_without_a_projection_the_state_is_the_output_of_the_convolutions() -> None:
    encoder = PixelEncoder(2, SHAPE, PIXEL)
    views = torch.randint(256, (3, 2, *SHAPE), dtype=torch.uint8)
    mask = torch.tensor([[True, True], [True, False], [False, True]])
    encoder.absent_token.data.fill_(7.0)
    state = encoder.encode(views, mask).state.unflatten(1, (2, -1))
    flat = encoder.trunk(views.flatten(0, 1) / 255 - 0.5).unflatten(0, (3, 2))
    assert encoder.state_dim == flat[0].numel() == 2 * 32 * 5 * 5
    torch.testing.assert_close(state, torch.where(mask[..., None], flat, 7.0))


@pytest.mark.parametrize(
    ("method", "got"), [("drqv2+mem", "representation=mem"), ("drqv2+none", "representation.projection=true")]
)
def test_the_official_structure_needs_a_representation_without_projection(method: str, got: str) -> None:
    config = make_config("toy/hidden_goal_continuous", method=method)
    with pytest.raises(ValueError, match=rf"expected .*representation\.projection=false, got {got}"):
        apply_overrides(config, {"agent": {"structure": "official"}})


@pytest.mark.parametrize("method", ["sac+none", "ppo+none", "drqv2+none"])
def test_any_agent_may_use_the_output_of_the_convolutions(method: str) -> None:
    config = make_config("toy/hidden_goal", method=method)
    assert not apply_overrides(config, {"representation": {"projection": False}}).representation.projection


def test_the_preset_is_the_published_agent_with_one_camera() -> None:
    config = load_preset("drqv2", task="dmc/cheetah_run", method="drqv2+none", seed=1)
    assert (config.env.views, config.env.image_size, config.env.frame_stack) == (("0",), 84, 3)
    assert (config.agent.structure, config.agent.projection_dim, config.agent.encoder_tau) == ("official", 50, 1.0)
    assert config.representation == PixelEncoderConfig(trunk="paper", projection=False)
    assert (config.replay.batch_size, config.replay.n_step, config.replay.augmentation_pixels) == (256, 3, 4)
