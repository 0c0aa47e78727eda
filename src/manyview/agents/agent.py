"""What every agent has: a representation, perhaps an intrinsic reward, and a state that can be kept."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from manyview.agents.state import load_state_into, state_of
from manyview.methods.protocols import Episodic, Intrinsic, Representation


def no_bonus(_: int) -> float:
    return 0.0


class Agent(nn.Module):
    """Acts on the representation's state, and is paid β times the intrinsic reward for exploring."""

    def __init__(
        self,
        representation: Representation,
        *,
        intrinsic: Intrinsic | Episodic | None = None,
        beta: Callable[[int], float] = no_bonus,
    ) -> None:
        super().__init__()
        self.representation, self.intrinsic, self.beta = representation, intrinsic, beta

    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:
        """Actions [B, ...] for `views` [B, V, C, H, W]; without exploring, as it is evaluated."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """All there is to keep, as a tree of tensors."""
        return state_of(self)

    def load_state(self, state: dict[str, Any]) -> None:
        load_state_into(self, state)

    def go_back(self, state: dict[str, Any]) -> None:
        """To what was learned then, in the midst of a run."""
        self.load_state(state)

    @property
    def pays_what_it_encodes(self) -> bool:
        """Whether the bonus is of the representation, as MEM's is; others have an encoder of their own."""
        return id(self.intrinsic) == id(self.representation)
