"""Compare how far random shifts and different states move the features of a new encoder.

    python -m experiments.shifting     # `cpu` and the paper's preset, some minutes

Both are standard deviations of MEM's state, mean over its features: between unshifted states of two episodes with
random actions, and between eight shifts of one state, with one draw per image.
"""

import numpy as np
import torch
from torch import Tensor

from manyview.config.overrides import apply_overrides
from manyview.data.batch_augmentation import random_shift
from manyview.training import factory, load_preset

PRESETS = {"cpu": (1, 2, 4), "paper/dmc/drqv2": (4,)}
TASKS = ("dmc/ball_in_cup_catch", "dmc/pendulum_swingup")
STATES, DRAWS = 100, 8


class Samples:
    """Images from two episodes with random actions, and a new encoder for them."""

    def __init__(self, task: str, preset: str) -> None:
        config = load_preset(preset, task=task, method="drqv2+mem", seed=1)
        self.config = apply_overrides(config, {"replay": {"capacity": 2_000}})
        env = factory.make_training_env(self.config)
        shapes = factory.infer_shapes(self.config, env)
        agent = factory.build_agent(self.config, shapes)
        self.encoder = agent.representation
        replay, rng = factory.build_replay_buffer(self.config, shapes, agent.bonus), np.random.default_rng(0)
        for episode in range(2):
            replay.start_episode(env.reset(seed=episode)[0])
            over = False
            while not over:
                action = rng.uniform(-1, 1, shapes.actions.size).astype(np.float32)
                seen, reward, terminated, truncated, _ = env.step(action)
                replay.add(action, float(reward), terminated, seen)
                over = terminated or truncated
        env.close()
        views, mask = replay.stack_frames(np.sort(rng.choice(len(replay), STATES, replace=False)))
        self.views, self.mask = torch.from_numpy(np.ascontiguousarray(views)), torch.from_numpy(mask)

    @torch.no_grad()
    def measure_states(self) -> Tensor:
        """Return the standard deviation between states."""
        state: Tensor = self.encoder.encode(self.views, self.mask).state
        return state.std(0).mean()

    @torch.no_grad()
    def measure_shifts(self, pixels: int) -> Tensor:
        """Return the standard deviation between shifts of one state."""
        generator = torch.Generator().manual_seed(0)
        shifted = (random_shift(self.views, pixels, generator) for _ in range(DRAWS))
        return torch.stack([self.encoder.encode(views, self.mask).state for views in shifted]).std(0).mean()


def main() -> None:
    torch.set_num_threads(1)
    print("task, preset, image size, shift: between states, between shifts of one state")
    for task in TASKS:
        for preset, shifts in PRESETS.items():
            samples = Samples(task, preset)
            spread = samples.measure_states()
            for pixels in shifts:
                label = f"{task}, {preset}, {samples.config.env.image_size} pixels, shift {pixels}"
                print(f"{label}: {spread:.3f}, {samples.measure_shifts(pixels):.3f}", flush=True)


if __name__ == "__main__":
    main()
