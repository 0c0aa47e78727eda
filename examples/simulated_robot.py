"""Run a policy on a simulated robot whose cameras fail, and replay the run from its trace.

    python examples/simulated_robot.py

The policy is written by hand, so that the example needs no training; `manyview.load(RUN)` returns a trained one.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import manyview
from manyview.deploy.simulated_robot import CameraFault, SimulatedRobot
from manyview.runtime import ActionLimits, PolicyRunner, Tick, replay_trace

TASK, VIEWS = "toy/hidden_goal_continuous", ("column", "row")


@dataclass(frozen=True)
class Spec:
    """Views and state vectors of the policy; `policy.spec` of a trained one has the same fields."""

    views: tuple[manyview.envs.View, ...]
    vectors: tuple[Any, ...] = ()
    resize: None = None


class Seeker:
    """Moves along the axis of each camera, and not at all along that of a missing one."""

    def __init__(self) -> None:
        env = manyview.make(TASK)
        self.spec = Spec(manyview.get_views(env))
        env.close()

    def reset(self) -> None:
        """Forget nothing: it has no memory."""

    def act(self, observation: Any) -> Any:
        """Return a speed per axis, toward the bright side of its image."""
        images = [observation[name] for name in VIEWS]
        return np.array([0 if image is None else np.tanh(image.mean() / 128 - 0.5) for image in images], np.float32)


def print_change(tick: Tick, masked: dict[str, str] = {}) -> None:  # noqa: B006  keeps what was printed
    """Print the masks when they change."""
    if tick.masked != masked:
        print(f"tick {tick.number}: masked {dict(tick.masked) or 'nothing'}")
        masked.clear()
        masked.update(tick.masked)


def main() -> None:
    """Run for six seconds: a camera freezes, recovers, and another one dies."""
    faults = [CameraFault("column", "freeze", 1.0, 2.5), CameraFault("row", "die", 4.0)]
    robot = SimulatedRobot(lambda: manyview.make(TASK, frame_stack=1), cameras=VIEWS, faults=faults)
    policy, limits = Seeker(), ActionLimits(low=-1.0, high=1.0, max_change_per_s=10.0)
    with TemporaryDirectory() as directory:
        trace = Path(directory) / "run.jsonl"
        with PolicyRunner.for_robot(policy, robot, limits=limits, trace=trace, store_frames=True) as runner:
            summary = runner.run(seconds=6.0, on_tick=print_change)
        robot.close()
        replay = replay_trace(policy, trace)
    print(f"{summary.reason}: {summary.ticks} ticks, {summary.rate_hz:.1f} Hz, {summary.deadline_misses} misses")
    print(f"masked ticks {dict(summary.masked_ticks)}, safe action sent: {summary.safe_action_sent}")
    print(f"replay: {len(replay.ticks)} actions, {len(replay.mismatches)} differ")


if __name__ == "__main__":
    main()
