"""Settings that agents with a replay buffer share."""

from dataclasses import dataclass

from manyview.utils.validation import (
    MAX_UNITS,
    check_at_least,
    check_at_most,
    check_choices,
    check_positive,
    check_unit_interval,
)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings that DrQ-v2 and SAC share."""

    hidden: int = 1024
    """Hidden width of actor and critics."""
    layer_norm: bool = False
    """LayerNorm after each hidden layer of actor and critics."""
    encoder_lr: float | None = None
    """Learning rate of the representation; None uses `lr`."""
    encoder_tau: float = 1.0
    """Soft-update rate τ of the target encoder, which encodes s_{t+n} for the critic's targets; 1 uses the encoder
    itself."""
    vector_dim: int = 64
    """Width of the encoder of state vectors (`env.state`)."""
    view_dropout: float = 0.0
    """Probability with which an update hides each view of s_t from the agent; one view is always kept."""
    critic_trains_encoder: bool = True
    """Train the encoder by the critic's loss too. `false` leaves only the representation's loss, as in line 15 of the
    paper's Algorithm 1; the token of an absent view is then never trained."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "hidden", "vector_dim")
        check_at_most(self, MAX_UNITS, "hidden", "vector_dim")
        check_unit_interval(self, "encoder_tau", "view_dropout")
        if self.encoder_lr is not None:
            check_positive(self, "encoder_lr")
