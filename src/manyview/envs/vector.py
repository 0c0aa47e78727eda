"""Many environments as one: their state, and what their infos say."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from manyview.envs.views import NotRestorable, Observation, State, restore, snapshot

AnyVectorEnv = VectorEnv[Any, Any, Any]


def snapshot_all(envs: AnyVectorEnv) -> State:
    """The state of every environment; `NotRestorable` where their simulator keeps it to itself."""
    return {str(number): snapshot(env) for number, env in enumerate(_list_envs(envs))}


def restore_all(envs: AnyVectorEnv, state: State) -> Observation:
    """Go on from a snapshot as if nothing had happened since; the observations it was taken at."""
    env_list = _list_envs(envs)
    if state.keys() != {str(number) for number in range(len(env_list))}:
        raise NotRestorable(f"the snapshot is of {len(state)} environments, here are {len(env_list)}")
    return stack_observations([restore(env, state[str(number)]) for number, env in enumerate(env_list)])


def get_attr_values(env: AnyVectorEnv | gym.Env[Any, Any], name: str) -> list[Any]:
    """Return an attribute of every environment in this process that has it, in whichever of its layers."""
    each = list(env.envs) if isinstance(env, SyncVectorEnv) else [] if isinstance(env, VectorEnv) else [env]
    return [one.get_wrapper_attr(name) for one in each if one.has_wrapper_attr(name)]


def stack_observations(observations: Sequence[Observation]) -> Observation:
    """Of single environments, as a vector environment shows them."""
    return {name: np.stack([one[name] for one in observations]) for name in observations[0]}


def extract_finished_episodes(info: dict[str, Any]) -> list[dict[str, Any]]:
    """The sums of the episodes that ended in a step: return, steps and frames of each."""
    final = info.get("final_info", {})
    if "episode" not in final:
        return []
    return [_select_env_info(final["episode"], place) for place in np.flatnonzero(final["_episode"]).tolist()]


def _select_env_info(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """What one environment told, of what Gymnasium made of all: `_name` says who told `name`."""
    info = {}
    for name, values in infos.items():
        if name.startswith("_") or not infos[f"_{name}"][index]:
            continue
        value = _select_env_info(values, index) if isinstance(values, dict) else values[index]
        info[name] = value.item() if isinstance(value, np.generic) else value
    return info


def count_frames(info: dict[str, Any], num_envs: int) -> int:
    """Simulator frames that a step of all of them took."""
    frames = np.ones(num_envs, int)
    for infos in (info, info.get("final_info", {})):
        if "frames" in infos:
            frames = np.where(infos["_frames"], infos["frames"], frames)
    return int(frames.sum())


def _list_envs(envs: AnyVectorEnv) -> list[Any]:
    if not isinstance(envs, SyncVectorEnv):
        raise NotRestorable(f"{type(envs).__name__} does not give the states of its environments")
    return list(envs.envs)
