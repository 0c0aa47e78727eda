"""Settings of MEM. `docs/explanation/decisions.md` gives the reason for each default."""

from dataclasses import dataclass
from typing import Literal

from manyview.mem.knn import Combine
from manyview.mem.losses import L1, Adversary, MarginUnit, OtherViews
from manyview.mem.regularizers import Temporal
from manyview.nn.normalization import RewardScale
from manyview.nn.trunks import Trunk
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices, check_positive

DistanceScale = Literal["raw", "relative"]


@dataclass(frozen=True, kw_only=True)
class MEMRepresentationConfig:
    """Settings of MEM's encoder and losses."""

    latent_dim: int = 64
    """Dimension p of a shared or specific feature vector."""
    trunk: Trunk = "paper"
    """Convolutions: four as in the `paper`, `small` (nine times cheaper, for CPUs), `tiny` for 20-pixel images,
    `tiny_diff` (`tiny` of frame differences), `area` for averaged images of 16 to 40 pixels, `nature`, or the residual
    `impala` and, at half its width, `impala_half`."""
    affine_norm: bool = False
    """Learn a gain and an offset in LayerNorm."""

    diff_coef: float = 0.01
    """λ1, weight of L_diff (Eq. 3): cosine similarity and sparsity."""
    con_coef: float = 0.1
    """λ2, weight of L_con (Eq. 4): keeps the specific features of a view together."""
    adv_coef: float = 0.1
    """λ3, weight of L_adv (Eq. 5): makes the shared features of all views indistinguishable."""
    l1: L1 = "mean"
    """Reduction of the L1 term of Eq. 3 over features: `mean`, or `sum` as in the paper."""
    margin: float = 1.0
    """Margin of Eq. 4."""
    margin_unit: MarginUnit = "norm"
    """Unit of the margin: the features' `norm`, √p after LayerNorm, or `raw` distance."""
    others: OtherViews = "pooled"
    """μ_diff of Eq. 4: the mean of all other views (`pooled`), or one hinge per other view (`each`)."""
    adversary: Adversary = "uniform"
    """Encoder side of Eq. 5: push the discriminator's output to `uniform`, or use gradient `reversal`."""
    discriminator_lr: float = 1e-3
    """Learning rate of the discriminator's Adam optimizer."""

    floor: float = 0.5
    """Variance floor: minimum standard deviation of a feature dimension (not in the paper)."""
    floor_coef: float = 1.0
    """Weight of the variance floor; 0 turns it off."""
    decorrelation_coef: float = 0.4
    """Weight of the squared covariances between feature dimensions (not in the paper); 0 turns it off."""
    temporal: Temporal = "closeness"
    """Temporal loss (not in the paper): `closeness` to the next features, or `contrast` (InfoNCE) with other rows."""
    temporal_coef: float = 0.1
    """Weight of the temporal loss; 0 turns it off, and `compute_loss` then needs no `next_features`."""
    temporal_temperature: float = 0.1
    """Temperature of the temporal `contrast`."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "latent_dim")
        check_at_most(self, MAX_UNITS, "latent_dim")
        check_positive(self, "temporal_temperature", "discriminator_lr")
        check_at_least(self, 0, "diff_coef", "con_coef", "adv_coef", "margin")
        check_at_least(self, 0, "floor", "floor_coef", "decorrelation_coef", "temporal_coef")


@dataclass(frozen=True, kw_only=True)
class EntropyBonusConfig:
    """Settings of MEM's intrinsic reward r̂ (Eq. 9)."""

    k: int = 3
    """k of the k-nearest neighbor in Eq. 9."""
    entropy: Combine = "marginal"
    """Entropy of Eq. 9: one per view as written (`marginal`), or one over the full state (`joint`)."""
    bank: int = 0
    """Feature bank size: rows of recent features to search besides the batch (not in the paper); 0 turns it off."""
    distance_scale: DistanceScale = "raw"
    """Distances of Eq. 9: `raw`, or `relative` to their running mean."""
    reward_scale: RewardScale = "raw"
    """r̂ as in Eq. 9 (`raw`), divided by its running `std`, or `centered`: standardized within the batch."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "k")
        check_at_least(self, 0, "bank")


@dataclass(frozen=True, kw_only=True)
class MEMConfig(MEMRepresentationConfig, EntropyBonusConfig):
    """Settings of MEM: encoder, losses and intrinsic reward.

    The defaults are chosen by measurement; `MEMConfig.literal()` follows the text of the paper.
    """

    def __post_init__(self) -> None:
        MEMRepresentationConfig.__post_init__(self)
        EntropyBonusConfig.__post_init__(self)

    @classmethod
    def literal(cls) -> "MEMConfig":
        """Return the paper's settings, read literally and without our regularizers.

        Without extrinsic reward the features collapse: see `docs/explanation/collapse.md`.
        """
        return cls(
            affine_norm=True,
            diff_coef=0.01,
            con_coef=0.01,
            adv_coef=0.01,
            l1="sum",
            margin_unit="raw",
            adversary="reversal",
            floor_coef=0.0,
            decorrelation_coef=0.0,
            temporal_coef=0.0,
            bank=0,
        )
