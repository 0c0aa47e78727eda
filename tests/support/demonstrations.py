"""Demonstration datasets recorded with a uniform random policy."""

from pathlib import Path

import numpy as np

from manyview.data.demonstrations import DemonstrationsManifest, DemonstrationWriter
from manyview.training import RunConfig, factory


def write_demonstrations(
    folder: Path, config: RunConfig, *, episodes: int = 4, seed: int = 0
) -> DemonstrationsManifest:
    """Record episodes of a run's task, each terminated at its last transition."""
    env = factory.make_training_env(config)
    shapes = factory.infer_shapes(config, env)
    writer = DemonstrationWriter(
        folder, shapes.views, action_size=shapes.actions.size, state_vectors=shapes.state_vectors
    )
    rng = np.random.default_rng(seed)
    for episode in range(episodes):
        observation, _ = env.reset(seed=1000 * seed + episode)
        writer.start_episode(observation)
        done = False
        while not done:
            action = rng.uniform(-1, 1, shapes.actions.size).astype(np.float32)
            observation, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            writer.add(action, float(reward), done, observation)
    env.close()
    return writer.close({"seed": seed})
