"""No bonus: the agent learns from the task's reward alone."""

from dataclasses import dataclass

from manyview.methods.interfaces import BuildContext
from manyview.methods.registry import register_bonus


@dataclass(frozen=True)
class NoBonusConfig:
    """No settings."""


@register_bonus("none", NoBonusConfig)
def build_none(config: NoBonusConfig, context: BuildContext) -> None:
    """Return None: agents treat it as r̂ = 0."""
