"""dm_control's environments, loaded so that one generator of ours decides everything random in them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from manyview.envs.dmc.suite import CAMERAS, split_task_name

MODEL_SEED = 0
"""LQR draws its model once, when it is loaded: every environment must have the same."""


def load_dmc_env(name: str, random_state: np.random.RandomState) -> Any:
    """The dm_control environment of our task `name`. Its resets draw from `random`."""
    random_state.seed(MODEL_SEED)
    with _suppress_absl_warnings():
        return _load_reach_duplo(random_state) if name == "reach_duplo" else _load_suite(name, random_state)


@contextmanager
def _suppress_absl_warnings() -> Iterator[None]:
    """dm_control's own model files are told at every load that an attribute of theirs is deprecated."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _load_suite(name: str, random_state: np.random.RandomState) -> Any:
    from dm_control import suite

    domain, task = split_task_name(name)
    return suite.load(domain, task, task_kwargs={"random": random_state})


def _load_reach_duplo(random_state: np.random.RandomState) -> Any:
    from dm_control import manipulation
    from dm_control.manipulation.shared import cameras

    env = manipulation.load("reach_duplo_vision", seed=random_state)
    body = env.task.root_entity.mjcf_model.worldbody
    existing = {camera.name for camera in body.all_children() if camera.tag == "camera"}
    for camera in CAMERAS["reach_duplo"]:
        if camera not in existing:
            body.add("camera", **getattr(cameras, camera.upper())._asdict())
    # We draw our own pictures; its own would cost a rendering a step.
    for observable in env.task.observables.values():
        observable.enabled = False
    return env
