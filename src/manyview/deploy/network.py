"""Network of a policy: from the arrays of `PolicySpec.inputs` to actions in the units of the environment."""

from typing import Any

import torch
from torch import Tensor, nn

from manyview.agents import Agent
from manyview.runtime.spec import ACTIONS, MEMORY, NEXT_MEMORY, DiscreteActions, PolicySpec
from manyview.training.factory import Shapes

PREVIOUS_ACTION = "previous_action"
"""Part of a recurrent state that the policy's own output fills."""


class PolicyNetwork(nn.Module):
    """Encoder and policy of an agent, without state and randomness, as `torch.export` needs it.

    Augmented views are computed inside, with the draw of the first evaluation episode.
    """

    center: Tensor
    half_range: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, agent: Agent, shapes: Shapes, spec: PolicySpec) -> None:
        super().__init__()
        self.agent, self.shapes, self.spec = agent.eval(), shapes, spec
        self._names = tuple(spec.inputs)
        if not isinstance(spec.actions, DiscreteActions):
            bounds = spec.actions
            for name in ("center", "half_range", "low", "high"):
                self.register_buffer(name, torch.tensor(getattr(bounds, name), dtype=torch.float32), persistent=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return actions [B, A] or [B] and the parts of the recurrent state, in the order of `PolicySpec.outputs`."""
        spec, tensors = self.spec, dict(zip(self._names, inputs, strict=True))
        views = torch.stack([tensors[view.name] for view in spec.views], 1)  # [B, V, stack, H, W, C]
        views = views.permute(0, 1, 2, 5, 3, 4).flatten(2, 3)  # [B, V, stack * C, H, W]
        views, mask = self._append_derived_views(views, tensors["mask"])
        memory = {part.name: tensors[MEMORY + part.name] for part in spec.memory}
        state, next_memory = self.agent.encode_step(memory, views, mask, **self._join_vectors(tensors))
        action = self.agent.compute_greedy_action(state)
        outputs = {NEXT_MEMORY + name: part for name, part in {**next_memory, PREVIOUS_ACTION: action}.items()}
        outputs[ACTIONS] = self._scale(action)
        return tuple(outputs[name] for name in spec.outputs)

    def _append_derived_views(self, views: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if not self.shapes.derived_views.augmentations:
            return views, mask
        first = torch.zeros(views.shape[0], dtype=torch.int64, device=views.device)
        return self.shapes.derived_views(views, mask, draw_ids=first, env_ids=first)

    def _join_vectors(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return all state vectors as the agent takes them: [B, stack * sizes], whole steps one after another."""
        if not self.spec.vectors:
            return {}
        return {"vectors": torch.cat([tensors[vector.name] for vector in self.spec.vectors], 2).flatten(1)}

    def _scale(self, action: Tensor) -> Tensor:
        if isinstance(self.spec.actions, DiscreteActions):
            return action
        # Exactly the action itself for bounds of -1 and 1.
        scaled = self.center + action.float().clamp(-1, 1) * self.half_range
        return scaled.clamp(self.low, self.high)  # rounding could pass a bound by one bit
