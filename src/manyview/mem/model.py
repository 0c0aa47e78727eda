"""`MEM`: encoder, losses, intrinsic reward and diagnostics of the paper in one module."""

from collections.abc import Sequence

from torch import Tensor

from manyview.mem.bonus import EntropyBonus
from manyview.mem.config import MEMConfig
from manyview.mem.diagnostics import Diagnostics
from manyview.mem.encoder import Features
from manyview.mem.representation import MEMRepresentation


class MEM(MEMRepresentation):
    """Representation and bonus over named views.

        features, next_features = mem.encode(views), mem.encode(next_views)
        loss, metrics = mem.compute_loss(features, next_features)  # add to the critic's loss, one backward pass
        reward = reward_ext + beta(step) * mem.compute_reward(features)  # Eq. 9 and 10
        mem.update_discriminator(features)  # one Adam step

    The complete state is `mem.state_dict()` and `mem.discriminator_optimizer.state_dict()`.
    """

    config: MEMConfig

    def __init__(
        self, view_names: Sequence[str], image_shape: tuple[int, int, int], config: MEMConfig | None = None
    ) -> None:
        config = config or MEMConfig()
        super().__init__(view_names, image_shape, config)
        self.bonus = EntropyBonus(len(self.view_names), config.latent_dim, config)

    def compute_reward(
        self,
        features: Features,
        *,
        indices: Tensor | None = None,
        window: int | None = None,
        num_rollouts: int = 1,
        num_batches: int = 1,
    ) -> Tensor:
        """Return r̂ [B] of Eq. 9; see `EntropyBonus.compute_reward`."""
        return self.bonus.compute_reward(
            features, indices=indices, window=window, num_rollouts=num_rollouts, num_batches=num_batches
        )

    def diagnose(
        self,
        features: Features,
        *,
        bonus: EntropyBonus | None = None,
        beta: float = 0.0,
        indices: Tensor | None = None,
        distances: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> Diagnostics:
        return super().diagnose(
            features, bonus=bonus or self.bonus, beta=beta, indices=indices, distances=distances, vectors=vectors
        )
