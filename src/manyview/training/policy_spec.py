"""Spec of a run's policy: what is needed to act with it where its environment does not exist."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RescaleAction

from manyview.config.schema import RunConfig
from manyview.data.action_spec import ActionSpec
from manyview.envs import StateVector, View
from manyview.runtime.spec import ActionBounds, DiscreteActions, PolicySpec, Resize, VectorSpec, ViewSpec
from manyview.training.factory import Shapes, build_derived_views
from manyview.utils.json_io import is_number


def build_policy_spec(shapes: Shapes, env: Any) -> PolicySpec:
    """Return the spec of policies for an environment or vector environment with these shapes.

    The recurrent state is left out: it belongs to the agent.
    """
    metadata = env.metadata
    sizes = metadata.get("resize_sizes") or ()
    control_hz = metadata.get("control_hz")  # not `render_fps`, which is the rate of videos
    return PolicySpec(
        views=tuple(
            ViewSpec(view.name, *view.shape, metadata.get("camera_sizes", {}).get(view.name)) for view in shapes.cameras
        ),
        vectors=tuple(VectorSpec(vector.name, vector.size) for vector in shapes.state_vectors),
        frame_stack=shapes.frame_stack,
        vector_stack=shapes.state_stack,
        actions=_find_actions(shapes.actions, env),
        resize=Resize(tuple(sizes), metadata.get("aspect", "crop")) if sizes else None,
        control_hz=float(control_hz) if is_number(control_hz) and control_hz > 0 else None,
    )


def build_shapes(config: RunConfig, spec: PolicySpec) -> Shapes:
    """Return the shapes that a run's agent was built with."""
    cameras = tuple(View(view.name, *view.shape) for view in spec.views)
    is_discrete = isinstance(spec.actions, DiscreteActions)
    size = spec.actions.num_actions if isinstance(spec.actions, DiscreteActions) else len(spec.actions.low)
    derived_views = build_derived_views(config, cameras)
    return Shapes(
        cameras,
        spec.frame_stack,
        ActionSpec(size, discrete=is_discrete),
        derived_views,
        state_vectors=tuple(StateVector(vector.name, vector.size) for vector in spec.vectors),
        state_stack=spec.vector_stack,
    )


def _find_actions(actions: ActionSpec, env: Any) -> ActionBounds | DiscreteActions:
    """Return the actions in the units of the environment inside of a wrapper that rescales them to [-1, 1]."""
    if actions.discrete:
        return DiscreteActions(actions.size)
    bounds = env.metadata.get("action_bounds")
    if bounds is None:
        bounds = _find_rescaled_bounds(env.envs[0] if isinstance(env, SyncVectorEnv) else env)
    if bounds is None:
        return ActionBounds((-1.0,) * actions.size, (1.0,) * actions.size)
    low, high = (tuple(map(float, bound)) for bound in bounds)
    return ActionBounds(low, high)


def _find_rescaled_bounds(env: Any) -> tuple[Any, Any] | None:
    """Return the bounds that Gymnasium's `RescaleAction` replaced; None without one."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, RescaleAction):
            space: Any = env.env.action_space
            return space.low, space.high
        env = env.env
    return None
