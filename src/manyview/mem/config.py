"""Every choice MEM offers, with its default. Why each default is what it is: `docs/explanation/decisions.md`."""

from dataclasses import dataclass
from typing import Literal

from manyview.mem.knn import Combine
from manyview.mem.losses import L1, Adversary, MarginUnit, OtherViews
from manyview.mem.regularizers import Temporal
from manyview.nn.normalization import RewardScale
from manyview.nn.trunks import Trunk
from manyview.utils.validation import MAX_UNITS, check_at_least, check_at_most, check_choices

DistanceScale = Literal["raw", "relative"]


@dataclass(frozen=True, kw_only=True)
class MEMConfig:
    """Values of MEM. `MEMConfig.literal()` is the paper's text; the plain defaults are what was measured to work."""

    latent_dim: int = 64
    """p, the size of a shared or specific feature vector."""
    trunk: Trunk = "paper"
    """Convolutions: `paper`'s four, a `small` network nine times cheaper for CPUs, `tiny` for images of 20 pixels."""
    affine_norm: bool = False
    """Let LayerNorm learn a gain and an offset."""

    diff_coef: float = 0.01
    """λ1, weight of Eq. 3: cosine and sparsity."""
    con_coef: float = 0.1
    """λ2, weight of Eq. 4: specific features of a view stay together."""
    adv_coef: float = 0.1
    """λ3, weight of Eq. 5: shared features do not tell their view."""
    l1: L1 = "mean"
    """The sparsity term of Eq. 3 as a `mean` or a `sum` over features."""
    margin: float = 1.0
    """Margin of Eq. 4."""
    margin_unit: MarginUnit = "norm"
    """What Margin is measured in: the features' `norm`, √p after LayerNorm, or `raw` distance."""
    others: OtherViews = "pooled"
    """μ_diff of Eq. 4: the mean of all other views `pooled`, or one hinge for `each`."""
    adversary: Adversary = "uniform"
    """How θ answers the discriminator in Eq. 5: towards the `uniform` guess, or by gradient `reversal`."""
    discriminator_lr: float = 1e-3
    """Learning rate of the discriminator's own Adam."""

    floor: float = 0.5
    """Standard deviation below which a feature dimension is pushed apart (not in the paper)."""
    floor_coef: float = 1.0
    """Weight of that push; 0 turns it off."""
    decorrelation_coef: float = 0.4
    """Weight of the squared covariances between feature dimensions (not in the paper); 0 turns it off."""
    temporal: Temporal = "closeness"
    """What ties a frame to the next one (not in the paper): `closeness`, or `contrast` with the other rows."""
    temporal_coef: float = 0.1
    """Weight of that tie; 0 turns it off, and `compute_loss` then needs no later features."""
    temporal_temperature: float = 0.1
    """Temperature of the temporal contrast."""

    k: int = 3
    """Which nearest neighbour Eq. 9 measures the distance to."""
    entropy: Combine = "marginal"
    """Eq. 9 as written, one entropy per view (`marginal`), or one over the whole state (`joint`)."""
    bank: int = 0
    """Rows of recent features to search besides the batch (not in the paper); 0 searches the batch alone."""
    distance_scale: DistanceScale = "raw"
    """Distances as they are, or `relative` to their running mean."""
    reward_scale: RewardScale = "raw"
    """r̂ as in Eq. 9, divided by its running `std`, or `centered`, in deviations from the batch's mean."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "k", "latent_dim")
        check_at_most(self, MAX_UNITS, "latent_dim")
        for name in ("temporal_temperature", "discriminator_lr"):
            if getattr(self, name) <= 0:
                raise ValueError(f"expected {name} > 0, got {getattr(self, name)}")
        check_at_least(self, 0, "diff_coef", "con_coef", "adv_coef", "margin", "bank")
        check_at_least(self, 0, "floor", "floor_coef", "decorrelation_coef", "temporal_coef")

    @classmethod
    def literal(cls) -> "MEMConfig":
        """Return the paper's literal configuration. It collapses without reward: `docs/explanation/collapse.md`."""
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
