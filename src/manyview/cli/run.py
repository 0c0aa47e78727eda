"""`manyview run`: run a trained policy on a robot."""

import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
from tyro.conf import FlagCreatePairsOff, Positional, arg

import manyview
from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, exit_on_error, report_error
from manyview.cli.robot_display import show_run
from manyview.deploy.simulated_robot import CameraFault, SimulatedRobot
from manyview.envs import make
from manyview.envs.custom import call_user_function
from manyview.envs.registration import find_task
from manyview.envs.views import Observation
from manyview.runtime import ActionBounds, OnStale, PolicyLike, PolicyRunner, RobotLike, RunnerOptions, RunnerSummary
from manyview.utils.text import print_line

DEFAULT_RATE_HZ = 50.0
"""Rate of a simulated robot."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run(
    policy: Positional[Annotated[Path, arg(metavar="RUN", help="Run directory, or folder of `manyview export`.")]],
    *,
    robot: Annotated[
        str | None,
        arg(
            metavar="MODULE:FUNCTION",
            help="Function that returns the robot; its arguments follow a ?, as in a task.",
            help_behavior_hint="(default: a simulated robot)",
        ),
    ] = None,
    task: Annotated[
        str | None,
        arg(metavar="TASK", help="Task of the simulated robot.", help_behavior_hint="(default: the task of the run)"),
    ] = None,
    fault: Annotated[
        tuple[str, ...],
        arg(
            metavar="CAMERA:KIND@SECONDS ...",
            help="Faults of the simulated cameras: freeze, lag, die or hang, such as front:freeze@5s or "
            "front:die@5s-8s.",
            help_behavior_hint="",
        ),
    ] = (),
    rate_hz: Annotated[
        float | None,
        arg(
            metavar="HZ",
            help="Actions per second.",
            help_behavior_hint='(default: metadata["control_hz"] of the training environment, 50 in simulation)',
        ),
    ] = None,
    seconds: Annotated[
        float | None, arg(metavar="S", help="Length of the run.", help_behavior_hint="(default: until Ctrl-C)")
    ] = None,
    on_stale: Annotated[
        OnStale,
        arg(
            metavar="mask|hold|stop",
            help="While a camera is stale: act without it, repeat the last action for a while, or stop.",
        ),
    ] = "mask",
    max_frame_age_s: Annotated[float, arg(metavar="S", help="Greatest age of an image.")] = 0.2,
    max_frozen_s: Annotated[
        float | None,
        arg(
            metavar="S",
            help="Greatest time with the same image; inf for scenes that do not change.",
            help_behavior_hint="(default: the greatest age)",
        ),
    ] = None,
    max_hold_s: Annotated[float, arg(metavar="S", help="Greatest time without a new action.")] = 0.5,
    trace: Annotated[
        Path | None, arg(metavar="FILE", help="Write every tick to this JSONL file.", help_behavior_hint="")
    ] = None,
    store_frames: Annotated[
        bool, FlagCreatePairsOff, arg(help="With --trace: also store the images, to replay the run.")
    ] = False,
    as_json: Annotated[bool, FlagCreatePairsOff, arg(name="json", help="Print the result as a JSON object.")] = False,
) -> int:
    """Run a trained policy on a robot.

    Ctrl-C, SIGTERM, SIGHUP and every error send the robot's safe action before the command ends.
    """
    if store_frames and trace is None:
        return report_error("--store-frames needs --trace FILE")
    if robot is not None and (task is not None or fault):
        return report_error("--task and --fault are for the simulated robot: remove them, or --robot")
    with exit_on_error():
        loaded: PolicyLike = manyview.load(policy)
        if rate_hz is None:
            rate_hz = getattr(loaded.spec, "control_hz", None) or (DEFAULT_RATE_HZ if robot is None else None)
        if rate_hz is None:
            return report_error(
                "the policy does not know its control rate: expected --rate-hz HZ, the actions per second of its "
                'training. Set metadata["control_hz"] of the training environment to store it in the policy'
            )
        options: RunnerOptions = {
            "rate_hz": rate_hz,
            "on_stale": on_stale,
            "max_frame_age_s": max_frame_age_s,
            "max_frozen_s": max_frozen_s,
            "max_hold_s": max_hold_s,
            "trace": trace,
            "store_frames": store_frames,
        }
        try:
            with (
                _open_robot(robot, loaded, policy, task, fault, rate_hz) as opened,
                _raise_signals(),
                _print_at_end(PolicyRunner.for_robot(loaded, opened, **options), as_json) as runner,
                show_run(runner, sys.stderr if as_json else sys.stdout) as on_tick,
            ):
                summary = runner.run(seconds, on_tick)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
    return 0 if summary.reason == "finished" else EXIT_FAILED


@contextmanager
def _print_at_end(runner: PolicyRunner, as_json: bool) -> Iterator[PolicyRunner]:
    """Close a runner at the end and print its result, also after an error."""
    try:
        with runner:
            yield runner
    finally:
        if as_json:
            print(json.dumps(runner.summary.to_plain(), indent=2))
        else:
            print_result(runner.summary)


@contextmanager
def _open_robot(
    function: str | None, policy: PolicyLike, path: Path, task: str | None, faults: Sequence[str], rate_hz: float
) -> Iterator[RobotLike]:
    """Make the robot, and close it at the end."""
    robot: Any
    if function is None:
        robot = make_simulated_robot(policy, path, task=task, faults=faults, rate_hz=rate_hz)
    else:
        robot = call_user_function(function)
        missing = [name for name in ("cameras", "send_action", "safe_action") if not hasattr(robot, name)]
        if missing:
            raise TypeError(
                f"{function} returned no robot: expected an object with cameras, send_action and safe_action, got "
                f"{type(robot).__name__} without {', '.join(missing)}"
            )
    try:
        yield robot
    finally:
        if callable(close := getattr(robot, "close", None)):
            close()


def make_simulated_robot(
    policy: PolicyLike, path: Path, *, task: str | None, faults: Sequence[str], rate_hz: float
) -> SimulatedRobot:
    """Return a simulated robot of a task, with the settings of the run if `path` is one."""
    from manyview.training import RunDir, factory  # torch, which a robot need not have

    views, actions = policy.spec.views, getattr(policy.spec, "actions", None)
    names = [view.name for view in views]
    config = RunDir(path).read_config() if (path / "config.json").is_file() else None
    if task is None and config is not None and ":" in config.task:
        raise ValueError(
            f"task {config.task!r} of the run is code that is not trusted: expected --task {config.task}, got none. "
            "Add the option if the code is yours"
        )
    task = task or (config.task if config is not None else None)
    if task is None:
        raise ValueError("no task of the simulated robot: expected --task TASK, such as that of the training")

    def make_env() -> gym.Env[Observation, Any]:
        if config is not None and config.task == task:
            return factory.make_training_env(config)
        has_size = ":" in task or find_task(task).settings.image_size is not None
        return make(task, views=names, image_size=views[0].height if has_size else None, frame_stack=1)

    return SimulatedRobot(
        make_env,
        cameras=names,
        vectors=[vector.name for vector in policy.spec.vectors],
        rate_hz=rate_hz,
        faults=[CameraFault.parse(text) for text in faults],
        bounds=actions if isinstance(actions, ActionBounds) else None,
    )


@contextmanager
def _raise_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `KeyboardInterrupt`, after which the safe action is sent.

    SIGHUP stays ignored where it is, as under `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def print_result(summary: RunnerSummary) -> None:
    """Print the result as text."""
    print_line(f"{summary.reason}  {summary.detail}".rstrip())
    print_line(
        f"{summary.ticks:,} ticks in {summary.seconds:.1f} s ({summary.rate_hz:.1f} Hz), "
        f"{summary.deadline_misses} deadlines missed, {summary.held_ticks} held, {summary.limited_ticks} limited"
    )
    for name in {**summary.max_age_s, **summary.masked_ticks}:
        masked, age_ms = summary.masked_ticks[name], 1000 * summary.max_age_s.get(name, 0.0)
        failures = summary.camera_failures.get(name, 0)
        print_line(f"{name}: masked in {masked:,} ticks, greatest age {age_ms:.0f} ms, {failures} failed reads")
    print_line(f"greatest skew between cameras {1000 * summary.max_skew_s:.0f} ms")
    print_line(f"safe action {'sent' if summary.safe_action_sent else 'NOT SENT: stop the robot by hand'}")
    if summary.dropped_records or summary.lost_frames:
        print_line(
            f"trace: {summary.dropped_records} records and {summary.lost_frames} frames lost ({summary.trace_error})"
        )
