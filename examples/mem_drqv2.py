"""MEM with DrQ-v2 in one file: the paper's Algorithm 1, with torch and gymnasium alone.

    python examples/mem_drqv2.py                          # the toy below, a few minutes on one core
    python examples/mem_drqv2.py --beta0 0 --seed 2       # any setting of `Args`; this one without the bonus

A goal is hidden on a grid of 3 x 3 cells. One camera sees its column, another its row: a policy needs both, and with a
single one its return is at most 3.3 of 10. To use your own task, replace `HiddenGoal` by a gymnasium environment whose
observation is a dict of uint8 images [H, W, C] of one size, and whose actions are a Box from -1 to 1.

The library `manyview` has the same update with absent views, replay on disk, resume and further methods. It fixes or
extends the paper where a comment says D and a number: see docs/explanation/decisions.md.
"""

import argparse
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Observation = dict[str, Any]  # images [H, W, C] uint8 by view


@dataclass
class Args:
    """Settings, with the paper's names."""

    seed: int = 1
    frames: int = 2_000
    random_frames: int = 300
    """Frames with random actions before the first update."""
    batch_size: int = 64
    discount: float = 0.9
    lr: float = 5e-4
    hidden: int = 256
    tau: float = 0.01
    """Soft-update rate of the target critics."""
    std_start: float = 1.0
    std_end: float = 0.1
    std_frames: int = 1_500
    """Frames over which the exploration noise decays."""
    std_clip: float = 0.3
    shift: int = 1
    """Random shift of images in pixels."""
    latent_dim: int = 32
    """Dimension p of shared and specific features."""
    diff_coef: float = 0.01
    con_coef: float = 0.1
    adv_coef: float = 0.1
    floor_coef: float = 1.0
    decorrelation_coef: float = 0.4
    temporal_coef: float = 0.1
    margin: float = 1.0
    k: int = 3
    """Neighbor whose distance is the entropy estimate."""
    beta0: float = 0.05
    beta_decay: float = 1e-5


class HiddenGoal(gym.Env[Observation, Any]):
    """A goal on a grid of 3 x 3 cells: an action in it pays 1, and the goal moves at every step."""

    cells, size, steps = 3, 20, 10

    def __init__(self) -> None:
        image = gym.spaces.Box(0, 255, (self.size, self.size, 1), np.uint8)
        self.observation_space: Any = gym.spaces.Dict({"column": image, "row": image})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.step_count, self.goal = 0, self.np_random.integers(self.cells, size=2)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        cell = np.clip((np.asarray(action) + 1) / 2 * self.cells, 0, self.cells - 1).astype(int)
        reward = float((cell == self.goal).all())
        self.step_count, self.goal = self.step_count + 1, self.np_random.integers(self.cells, size=2)
        return self.observe(), reward, False, self.step_count >= self.steps, {}

    def observe(self) -> Observation:
        edges = np.linspace(0, self.size, self.cells + 1).round().astype(int)
        column, row = np.zeros((2, self.size, self.size, 1), np.uint8)
        column[:, edges[self.goal[0]] : edges[self.goal[0] + 1]] = 255
        row[edges[self.goal[1]] : edges[self.goal[1] + 1]] = 255
        return {"column": column, "row": row}


class Encoder(nn.Module):
    """F_θ: shared features x and specific features y of every view (Eq. 2), and the state (Eq. 7)."""

    def __init__(self, num_views: int, image_shape: tuple[int, ...], latent_dim: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(image_shape[0], 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(), nn.Flatten()
        )
        flat_dim = self.trunk(torch.zeros(1, *image_shape)).shape[1]
        self.shared, self.specific = nn.Linear(flat_dim, latent_dim), nn.Linear(flat_dim, latent_dim)
        self.norm = nn.LayerNorm(latent_dim, elementwise_affine=False)  # D2: a learned gain could shrink to zero
        self.state_dim = (num_views + 1) * latent_dim
        init_orthogonal(self)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x and y [B, V, P], and the state [B, (V + 1) P], of `views` [B, V, C, H, W] uint8."""
        hidden = self.trunk(views.flatten(0, 1).float() / 255 - 0.5)
        shared = self.norm(self.shared(hidden)).unflatten(0, views.shape[:2])
        specific = self.norm(self.specific(hidden)).unflatten(0, views.shape[:2])
        return shared, specific, torch.cat([specific.flatten(1), shared.mean(1)], dim=1)


def stack_terms(shared: Tensor, specific: Tensor) -> Tensor:
    """Return the vectors whose entropy r̂ estimates, [B, V + 1, P]: y of every view, then the mean of x."""
    return torch.cat([specific, shared.mean(1, keepdim=True)], dim=1)


def diff_loss(shared: Tensor, specific: Tensor) -> Tensor:
    """Eq. 3: x and y are orthogonal and sparse. D5: the mean over features, not their sum."""
    cosine = F.cosine_similarity(shared, specific, dim=-1).clamp(min=0)
    return (cosine + shared.abs().mean(-1) + specific.abs().mean(-1)).mean()


def con_loss(specific: Tensor, margin: float) -> Tensor:
    """Eq. 4: y is close to the mean of its view, and a margin away from that of the other views."""
    num_views, unit = specific.shape[1], float(specific.shape[2]) ** 0.5  # D11: in units of the features' norm
    means = specific.mean(0)  # [V, P]
    pull = (specific - means.detach()).square().sum(-1) / unit**2
    other_means = (means.sum(0) - means) / (num_views - 1)
    distance: Tensor = torch.linalg.vector_norm(specific - other_means, dim=-1) / unit
    return torch.mean(pull + (margin - distance).clamp(min=0).square()) / 2


def adv_loss(logits: Tensor) -> Tensor:
    """Eq. 5, the encoder's side: the discriminator cannot tell the views of x apart. D7: uniform, not reversed."""
    return -logits.log_softmax(-1).mean()


def discriminator_loss(logits: Tensor) -> Tensor:
    """Eq. 5, the discriminator's side: cross-entropy of the view."""
    labels = torch.arange(logits.shape[1]).expand(logits.shape[:2])
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def regularize(shared: Tensor, specific: Tensor, next_terms: Tensor, args: Args) -> Tensor:
    """D8: without these the features collapse, and the bonus with them. Not in the paper."""
    features = torch.cat([shared, specific], dim=1).transpose(0, 1)  # [2V, B, P]
    centered = features - features.mean(1, keepdim=True)
    covariance = centered.mT @ centered / (features.shape[1] - 1)
    variance = covariance.diagonal(dim1=1, dim2=2)
    floor = (0.5 - (variance + 1e-8).sqrt()).clamp(min=0).mean()
    decorrelation = (covariance.square().sum((1, 2)) - variance.square().sum(1)).mean() / features.shape[2]
    temporal = (stack_terms(shared, specific) - next_terms).square().mean()
    return args.floor_coef * floor + args.decorrelation_coef * decorrelation + args.temporal_coef * temporal


@torch.no_grad()
def intrinsic_reward(terms: Tensor, k: int, indices: Tensor) -> Tensor:
    """Eq. 9: r̂ [B], the mean over views and x̄ of log(distance to the k-th neighbor + 1).

    A transition that is twice in the batch, with equal `indices`, is no neighbor of itself.
    """
    points = terms.transpose(0, 1).double()  # [V + 1, B, P]
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances.masked_fill(indices[:, None] == indices, torch.inf)
    return distances.kthvalue(k, dim=-1).values.log1p().mean(0).float()


def init_orthogonal(network: nn.Module) -> None:
    """Initialize all layers as DrQ-v2 does."""
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter, 2**0.5 if parameter.ndim == 4 else 1.0)  # gain of a ReLU for convolutions
        else:
            nn.init.zeros_(parameter)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return three linear layers with ReLU."""
    first, second, last = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
    network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
    init_orthogonal(network)
    return network


class Critic(nn.Module):
    """Two Q-functions."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(mlp(state_dim + action_dim, hidden, 1) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([state, action], dim=1)
        return torch.stack([head(inputs).squeeze(1) for head in self.heads])  # [2, B]


class Agent:
    """Networks, optimizers and the update."""

    def __init__(self, num_views: int, image_shape: tuple[int, ...], action_dim: int, args: Args) -> None:
        self.args = args
        self.encoder = Encoder(num_views, image_shape, args.latent_dim)
        self.discriminator = nn.Linear(args.latent_dim, num_views)
        self.actor = mlp(self.encoder.state_dim, args.hidden, action_dim)
        self.critic = Critic(self.encoder.state_dim, action_dim, args.hidden)
        self.target_critic = deepcopy(self.critic)
        self.critic_optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.critic.parameters()], lr=args.lr)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=args.lr)
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(self, views: Tensor, std: float = 0.0) -> Any:
        action = self.actor(self.encoder(views[None])[2]).tanh()[0]
        return (action + std * torch.randn_like(action)).clamp(-1, 1).numpy()

    def add_noise(self, mean: Tensor, std: float) -> Tensor:
        """Return actions with clipped noise, bounded to (-1, 1); the gradient passes through the bound."""
        action = mean + (std * torch.randn_like(mean)).clamp(-self.args.std_clip, self.args.std_clip)
        return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()

    def update(self, batch: dict[str, Tensor], frame: int, std: float) -> dict[str, float]:
        """Take one update, lines 8 to 16 of Algorithm 1, and return its losses."""
        args = self.args
        views, next_views = (random_shift(batch[name], args.shift) for name in ("views", "next_views"))
        shared, specific, state = self.encoder(views)

        # TD target of the total reward (Eq. 10), with clipped double Q.
        with torch.no_grad():
            next_shared, next_specific, next_state = self.encoder(next_views)
            reward_int = intrinsic_reward(stack_terms(shared, specific), args.k, batch["indices"])
            reward = batch["reward"] + args.beta0 * (1 - args.beta_decay) ** frame * reward_int
            next_action = self.add_noise(self.actor(next_state).tanh(), std)
            target = reward + batch["discount"] * self.target_critic(next_state, next_action).amin(0)

        # Critics and encoder in one backward pass; D7: the discriminator's weights get no gradient here.
        values = self.critic(state, batch["action"])
        critic_loss = (values - target).square().mean(1).sum()
        logits = F.linear(shared, self.discriminator.weight.detach(), self.discriminator.bias.detach())
        mem_loss = (  # Eq. 6
            args.diff_coef * diff_loss(shared, specific)
            + args.con_coef * con_loss(specific, args.margin)
            + args.adv_coef * adv_loss(logits)
        )
        mem_loss = mem_loss + regularize(shared, specific, stack_terms(next_shared, next_specific), args)
        optimizer_step(self.critic_optimizer, critic_loss + mem_loss)
        optimizer_step(self.discriminator_optimizer, discriminator_loss(self.discriminator(shared.detach())))

        # Actor, on detached features: it does not train the encoder.
        action = self.add_noise(self.actor(state.detach()).tanh(), std)
        self.critic.requires_grad_(False)
        actor_loss = -self.critic(state.detach(), action).amin(0).mean()
        optimizer_step(self.actor_optimizer, actor_loss)
        self.critic.requires_grad_(True)

        with torch.no_grad():
            for online, slow in zip(self.critic.parameters(), self.target_critic.parameters(), strict=True):
                slow.lerp_(online, args.tau)
        losses = {"critic": critic_loss, "mem": mem_loss, "actor": actor_loss, "reward_int": reward_int.mean()}
        return {name: loss.item() for name, loss in losses.items()}


def optimizer_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def random_shift(views: Tensor, pixels: int) -> Tensor:
    """Shift all images of a view by one random offset. D13: an offset per image would make equal states differ."""
    if not pixels:
        return views
    size = views.shape[-1]
    padded, shifted = F.pad(views.float().flatten(0, 1), (pixels,) * 4, mode="replicate"), torch.empty_like(views)
    padded = padded.unflatten(0, views.shape[:2])
    for view in range(views.shape[1]):
        top, left = torch.randint(2 * pixels + 1, (2,)).tolist()
        shifted[:, view] = padded[:, view, :, top : top + size, left : left + size]
    return shifted


class Replay:
    """All transitions of the run."""

    def __init__(self, frames: int, view_shape: tuple[int, ...], action_dim: int, discount: float) -> None:
        self.views, self.next_views = torch.zeros(2, frames, *view_shape, dtype=torch.uint8)
        self.action, self.reward = torch.zeros(frames, action_dim), torch.zeros(frames)
        self.discount, self.gamma, self.size = torch.zeros(frames), discount, 0

    def add(self, views: Tensor, action: Any, reward: float, next_views: Tensor, terminated: bool) -> None:
        index = self.size
        self.views[index], self.next_views[index] = views, next_views
        self.action[index], self.reward[index] = torch.as_tensor(action), reward
        self.discount[index] = 0.0 if terminated else self.gamma  # a truncated episode has a future
        self.size += 1

    def sample(self, count: int) -> dict[str, Tensor]:
        indices = torch.randint(self.size, (count,))
        names = ("views", "next_views", "action", "reward", "discount")
        return {"indices": indices} | {name: getattr(self, name)[indices] for name in names}


def stack_views(observation: Observation) -> Tensor:
    """Return the images of an observation as [V, C, H, W]."""
    return torch.stack([torch.from_numpy(image).permute(2, 0, 1) for image in observation.values()])


def evaluate(agent: Agent, env: gym.Env[Observation, Any], episodes: int = 10) -> float:
    """Return the mean return without noise."""
    total = 0.0
    for episode in range(episodes):
        (observation, _), ended = env.reset(seed=episode), False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(agent.act(stack_views(observation)))
            total, ended = total + float(reward), terminated or truncated
    return total / episodes


def train(args: Args, env: gym.Env[Observation, Any], eval_env: gym.Env[Observation, Any]) -> Agent:
    """Train with Algorithm 1 and return the agent."""
    torch.manual_seed(args.seed)
    env.action_space.seed(args.seed)
    observation, _ = env.reset(seed=args.seed)
    views, action_dim = stack_views(observation), len(env.action_space.sample())
    agent = Agent(len(views), tuple(views.shape[1:]), action_dim, args)
    replay = Replay(args.frames, views.shape, action_dim, args.discount)
    for frame in range(args.frames):
        std = args.std_start + min(1.0, frame / args.std_frames) * (args.std_end - args.std_start)
        action = env.action_space.sample() if frame < args.random_frames else agent.act(views, std)
        observation, reward, terminated, truncated, _ = env.step(action)
        next_views = stack_views(observation)
        replay.add(views, action, float(reward), next_views, terminated)
        views = stack_views(env.reset()[0]) if terminated or truncated else next_views
        if frame >= args.random_frames:
            losses = agent.update(replay.sample(args.batch_size), frame, std)
            if (frame + 1) % 500 == 0:
                text = "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
                print(f"{frame + 1:>6,} frames  return {evaluate(agent, eval_env):.1f}  {text}", flush=True)
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    torch.set_num_threads(1)
    train(Args(**vars(parser.parse_args())), HiddenGoal(), HiddenGoal())
