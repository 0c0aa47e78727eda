"""What every agent has: a representation, perhaps an intrinsic reward, and a state that can be kept."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from manyview.agents.state import get_module_state, load_module_state
from manyview.methods.protocols import Bonus, EpisodicBonus, Representation


def zero_beta(_: int) -> float:
    return 0.0


class Agent(nn.Module):
    """Acts on the representation's state, and is paid β times the intrinsic reward for exploring."""

    def __init__(
        self,
        representation: Representation,
        *,
        bonus: Bonus | EpisodicBonus | None = None,
        beta: Callable[[int], float] = zero_beta,
    ) -> None:
        super().__init__()
        self.representation, self.bonus, self.beta = representation, bonus, beta

    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        """Actions [B, ...] for `views` [B, V, C, H, W]; without exploring, as it is evaluated."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """All there is to keep, as a tree of tensors."""
        return get_module_state(self)

    def load_state(self, state: dict[str, Any]) -> None:
        load_module_state(self, state)

    def rollback(self, state: dict[str, Any]) -> None:
        """To what was learned then, in the midst of a run."""
        self.load_state(state)

    @property
    def has_shared_encoder(self) -> bool:
        """Whether the bonus is of the representation, as MEM's is; others have an encoder of their own."""
        return id(self.bonus) == id(self.representation)
