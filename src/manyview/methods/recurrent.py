"""Interface of recurrent representations, and the memory of a policy that acts with one.

A recurrent representation has one pure function for a single step, which acting and exported policies call, and its
counterpart for whole sequences, which updates call::

    state, features = representation.step(state, views, mask, previous_action)   # act on features.state
    features = representation.encode_sequences(sequences)                         # the same for a batch
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from manyview.data.sequences import Sequences


@runtime_checkable
class Recurrent(Protocol):
    """Representation whose features depend on earlier observations of the episode; it learns from `sequences`.

    Its config has a field `sequence_length`. Its `encode` takes observations as the first of their episodes.
    """

    @property
    def memory_sizes(self) -> Mapping[str, int]:
        """Sizes of the recurrent state's parts and of `previous_action`; all are zero where an episode starts."""

    def step(
        self,
        state: Mapping[str, Tensor],
        views: Tensor,
        mask: Tensor,
        previous_action: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[dict[str, Tensor], Any]:
        """Return the recurrent state [E, ...] after an observation of E environments, and its features [E, ...].

        Nothing is changed. Without a `generator` there is no randomness.
        """

    def encode_sequences(self, sequences: Sequences, generator: torch.Generator | None = None) -> Any:
        """Return the features [O, ...] of all observations, as `step` gives them from the zero state on."""

    def update_sequences(
        self, first: Sequences, second: Sequences, target: Any, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Take an optimizer step on two augmentations of the same sequences and return metrics.

        It follows the agent's update; `target` is the target network of the representation, which has moved already.
        """


class Memory(nn.Module):
    """Recurrent state and previous action of E environments, by name: buffers [E, ...], saved with their module.

    All are zero where an episode starts. That of a feed-forward representation is empty.
    """

    def __init__(self, representation: Any, num_envs: int = 1) -> None:
        super().__init__()
        sizes = representation.memory_sizes if isinstance(representation, Recurrent) else {}
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(num_envs, size))

    def get(self) -> dict[str, Tensor]:
        """Return the buffers by name."""
        return dict(self.named_buffers())

    def store(self, **values: Tensor) -> None:
        """Overwrite the buffers of these names; others than its own are ignored."""
        for name, buffer in self.named_buffers():
            if name in values:
                buffer.copy_(values[name])

    def reset(self, envs: Tensor | None = None) -> None:
        """Start an episode in all environments, or in those that `envs` marks or lists."""
        for buffer in self.buffers():
            buffer[slice(None) if envs is None else envs] = 0
