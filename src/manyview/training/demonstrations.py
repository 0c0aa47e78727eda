"""Load the demonstrations of a run, and build the sampler that mixes them into its batches."""

from pathlib import Path

from manyview.config.schema import RunConfig
from manyview.data import ReplayBuffer
from manyview.data.demonstrations import Demonstrations, load_demonstrations
from manyview.data.mixed_sampler import BatchSampler, MixedSampler
from manyview.methods import Bonus, find_stored_features
from manyview.training import factory
from manyview.training.factory import Shapes


def build_demonstrations(config: RunConfig, shapes: Shapes, bonus: Bonus | None) -> Demonstrations | None:
    """Load the demonstrations of a run; None without any.

    Raises ValueError if they do not fit the run, or if `bonus` stores features, which demonstrations lack.
    """
    if config.replay.demonstrations is None:
        return None
    if find_stored_features(bonus) is not None:
        raise ValueError(
            f"replay.demonstrations: expected a bonus that searches the batch, got {config.bonus_name}, which stores "
            "features beside each step of the run. Set bonus.search=batch, or choose another bonus"
        )
    return load_demonstrations(
        Path(config.replay.demonstrations),
        shapes.views,
        action_size=shapes.actions.size,
        frame_stack=shapes.frame_stack,
        state_vectors=shapes.state_vectors,
        state_stack=shapes.state_stack,
        storage=factory.get_replay_directory(config),
    )


def build_batch_sampler(
    config: RunConfig, replay: ReplayBuffer, bonus: Bonus | None, demonstrations: Demonstrations | None
) -> BatchSampler:
    """Build the sampler of a run, which fills a part of every batch with demonstrations if there are any."""
    if demonstrations is None:
        return factory.build_sampler(config, replay, bonus)
    rows = config.replay.num_demonstrated
    return MixedSampler(
        factory.build_sampler(config, replay, bonus, rows=config.replay.batch_size - rows),
        factory.build_sampler(config, demonstrations.replay, None, rows=rows, stream="demonstrations"),
        num_demonstrated=demonstrations.replay.inserted,
    )
