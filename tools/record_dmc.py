"""Record multi-view frames of DeepMind Control tasks under random actions, as test data.

    MUJOCO_GL=egl python -m tools.record_dmc             # rewrites tests/fixtures/dmc/*.safetensors.zst

Needs only dm-control 1.0.49, mujoco 3.16.0, safetensors and zstandard. Each file holds `STEPS` agent steps of a task:

    frames      uint8  [T, 2, S, S, 3]    two cameras, single frames (stacks are built by index)
    foreground  uint8  [T, S, S / 8]      packed bits: 1 where a pixel of the first camera is not background
    state       float32 [T, D]            the true physics state as far as cameras can show it
    start       bool   [T]                first step of an episode

The third view of the paper, "background removed from the first", is `frames[:, 0]` where `foreground` is set.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from safetensors.numpy import save

STEPS, EPISODE_STEPS, ACTION_REPEAT, SIZE = 4000, 500, 2, 40
HINGE = 3  # mjtJoint.mjJNT_HINGE
ACTION_MEMORY = 0.9  # correlated noise: white noise does not make a hanging body swing
CAMERAS = {
    "pendulum_swingup": (0, 1),
    "cheetah_run": (0, 1),
    "reacher_hard": (0, 1),
    "finger_turn_hard": (0, 1),
    "ball_in_cup_catch": (0, 1),
}
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "dmc"


def read_visible_state(physics: Any, observation: Mapping[str, Any]) -> np.ndarray:
    """Return sine and cosine of angles, slides except the travel that a following camera hides, velocities, targets."""
    model, parts = physics.model, []
    for joint in range(model.njnt):
        value = physics.data.qpos[model.jnt_qposadr[joint]]
        if model.jnt_type[joint] == HINGE:
            parts += [np.sin(value), np.cos(value)]
        elif model.id2name(joint, "joint") != "rootx":
            parts.append(value)
    targets = [np.ravel(value) for name, value in observation.items() if "target" in name]
    return np.concatenate([parts, physics.data.qvel, *targets]).astype(np.float32)


def record_task(task: str, *, seed: int = 0) -> dict[str, np.ndarray]:
    from dm_control import mujoco, suite
    from dm_control.mujoco.wrapper import MjvOption
    from dm_control.mujoco.wrapper.mjbindings import enums

    domain, name = next((d, t) for d, t in suite.ALL_TASKS if f"{d}_{t}" == task)
    env = suite.load(domain, name, task_kwargs={"random": seed})
    physics = env.physics
    hidden_group = 5
    physics.model.geom_group[physics.model.geom_type == enums.mjtGeom.mjGEOM_PLANE] = hidden_group
    with_planes, without_planes = MjvOption(), MjvOption()
    with_planes.geomgroup[hidden_group] = 1
    without_planes.geomgroup[hidden_group] = 0
    plain = {"shadow": False, "reflection": False}
    cameras = [mujoco.Camera(physics, SIZE, SIZE, camera_id=c) for c in CAMERAS[task]]

    rng = np.random.default_rng(seed)
    spec = env.action_spec()
    out: dict[str, list[np.ndarray]] = {"frames": [], "foreground": [], "state": [], "start": []}
    for step in range(STEPS):
        start = step % EPISODE_STEPS == 0
        if start:
            time_step, noise = env.reset(), np.zeros(spec.shape)
        else:
            noise = ACTION_MEMORY * noise + np.sqrt(1 - ACTION_MEMORY**2) * rng.standard_normal(spec.shape)
            for _ in range(ACTION_REPEAT):
                time_step = env.step(np.clip(noise, spec.minimum, spec.maximum))
        segmented = cameras[0].render(segmentation=True, scene_option=without_planes)
        out["frames"].append(
            np.stack([c.render(scene_option=with_planes, render_flag_overrides=plain) for c in cameras])
        )
        out["foreground"].append(np.packbits(segmented[..., 0] >= 0, axis=-1))
        out["state"].append(read_visible_state(physics, time_step.observation))
        out["start"].append(np.asarray(start))
    return {key: np.stack(values) for key, values in out.items()}


if __name__ == "__main__":
    FIXTURES.mkdir(parents=True, exist_ok=True)
    # A window longer than a frame lets zstd find the still background in the frame before: 30 times smaller.
    packer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(19, window_log=23, enable_ldm=True)
    )
    for task in sys.argv[1:] or CAMERAS:
        raw = save(record_task(task))
        packed = packer.compress(raw)
        (FIXTURES / f"{task}.safetensors.zst").write_bytes(packed)
        print(f"{task}: {len(raw) / 1e6:.1f} MB, kept as {len(packed) / 1e6:.2f} MB", flush=True)
