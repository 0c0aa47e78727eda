"""Many environments as one: their state, and what their infos say."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from manyview.envs.views import NotRestorable, Observation, State, restore, snapshot

Vector = VectorEnv[Any, Any, Any]


def snapshot_all(envs: Vector) -> State:
    """The state of every environment; `NotRestorable` where their simulator keeps it to itself."""
    return {str(number): snapshot(env) for number, env in enumerate(_each(envs))}


def restore_all(envs: Vector, state: State) -> Observation:
    """Go on from a snapshot as if nothing had happened since; the observations it was taken at."""
    each = _each(envs)
    if state.keys() != {str(number) for number in range(len(each))}:
        raise NotRestorable(f"the snapshot is of {len(state)} environments, here are {len(each)}")
    return together([restore(env, state[str(number)]) for number, env in enumerate(each)])


def attribute_of_each(env: Vector | gym.Env[Any, Any], name: str) -> list[Any]:
    """Return an attribute of every environment in this process that has it, in whichever of its layers."""
    each = list(env.envs) if isinstance(env, SyncVectorEnv) else [] if isinstance(env, VectorEnv) else [env]
    return [one.get_wrapper_attr(name) for one in each if one.has_wrapper_attr(name)]


def together(observations: Sequence[Observation]) -> Observation:
    """Of single environments, as a vector environment shows them."""
    return {name: np.stack([one[name] for one in observations]) for name in observations[0]}


def episodes_ended(info: dict[str, Any]) -> list[dict[str, Any]]:
    """The sums of the episodes that ended in a step: return, steps and frames of each."""
    final = info.get("final_info", {})
    if "episode" not in final:
        return []
    return [_of_place(final["episode"], place) for place in np.flatnonzero(final["_episode"]).tolist()]


def _of_place(told: dict[str, Any], place: int) -> dict[str, Any]:
    """What one environment told, of what Gymnasium made of all: `_name` says who told `name`."""
    found = {}
    for name, values in told.items():
        if name.startswith("_") or not told[f"_{name}"][place]:
            continue
        one = _of_place(values, place) if isinstance(values, dict) else values[place]
        found[name] = one.item() if isinstance(one, np.generic) else one
    return found


def frames_of(info: dict[str, Any], count: int) -> int:
    """Simulator frames that a step of all of them took."""
    frames = np.ones(count, int)
    for told in (info, info.get("final_info", {})):
        if "frames" in told:
            frames = np.where(told["_frames"], told["frames"], frames)
    return int(frames.sum())


def _each(envs: Vector) -> list[Any]:
    if not isinstance(envs, SyncVectorEnv):
        raise NotRestorable(f"{type(envs).__name__} does not give the states of its environments")
    return list(envs.envs)
