"""Snapshots and infos of vector environments."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from manyview.envs.views import NotRestorable, Observation, State, restore, snapshot

AnyVectorEnv = VectorEnv[Any, Any, Any]


def snapshot_all(envs: AnyVectorEnv) -> State:
    """Return the state of every environment.

    Raises `NotRestorable` if the simulator does not expose it.
    """
    return {str(number): snapshot(env) for number, env in enumerate(_list_envs(envs))}


def restore_all(envs: AnyVectorEnv, state: State) -> Observation:
    """Continue exactly from a snapshot and return the observations at which it was taken."""
    env_list = _list_envs(envs)
    if state.keys() != {str(number) for number in range(len(env_list))}:
        raise NotRestorable(
            f"snapshot does not fit: expected {len(env_list)} environments, got a snapshot of {len(state)}"
        )
    return stack_observations([restore(env, state[str(number)]) for number, env in enumerate(env_list)])


def get_attr_values(env: AnyVectorEnv | gym.Env[Any, Any], name: str) -> list[Any]:
    """Return an attribute of every environment that has it.

    Searches all wrappers of the environments in this process.
    """
    envs = list(env.envs) if isinstance(env, SyncVectorEnv) else [] if isinstance(env, VectorEnv) else [env]
    return [single.get_wrapper_attr(name) for single in envs if single.has_wrapper_attr(name)]


def stack_observations(observations: Sequence[Observation]) -> Observation:
    """Stack observations of single environments into one of a vector environment."""
    return {name: np.stack([observation[name] for observation in observations]) for name in observations[0]}


def extract_finished_episodes(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return `info["episode"]` (return, steps, frames) of each episode that ended in a step."""
    final = info.get("final_info", {})
    if "episode" not in final:
        return []
    return [_select_env_info(final["episode"], index) for index in np.flatnonzero(final["_episode"]).tolist()]


def count_frames(info: dict[str, Any], num_envs: int) -> int:
    """Return the simulator frames that one step took, summed over all environments."""
    frames = np.ones(num_envs, int)
    for infos in (info, info.get("final_info", {})):
        if "frames" in infos:
            frames = np.where(infos["_frames"], infos["frames"], frames)
    return int(frames.sum())


def _list_envs(envs: AnyVectorEnv) -> list[Any]:
    if not isinstance(envs, SyncVectorEnv):
        raise NotRestorable(f"{type(envs).__name__} does not expose the states of its environments")
    return list(envs.envs)


def _select_env_info(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one environment from Gymnasium's batched dict.

    The mask `_name` marks the environments that have `name`.
    """
    info = {}
    for name, values in infos.items():
        if name.startswith("_") or not infos[f"_{name}"][index]:
            continue
        value = _select_env_info(values, index) if isinstance(values, dict) else values[index]
        info[name] = value.item() if isinstance(value, np.generic) else value
    return info
