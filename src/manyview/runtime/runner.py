"""Control loop of a policy on a robot, with a watchdog.

    with PolicyRunner(policy, cameras=cameras, send_action=robot.send, safe_action=np.zeros(7)) as runner:
        summary = runner.run(seconds=60)

Each tick takes the newest frame of every camera, masks those that are too old or frozen, asks the policy, limits its
action and sends it. However a run ends, the safe action is the last that the robot receives.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from math import inf, isfinite
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .action_gate import ActionGate, GateClosedError
from .action_limits import ActionLimits
from .clock import SYSTEM_CLOCK, Clock
from .observer import Observer, VectorError
from .protocols import Camera, PolicyLike, RobotLike
from .runner_options import (
    OnStale,
    RunnerOptions,
    check_above_zero,
    check_on_stale,
    resolve_max_frozen,
    resolve_watchdog,
)
from .runner_summary import RunnerSummary
from .trace import Tick, TraceWriter, describe_start

NO_LIMITS = ActionLimits()
MAX_READ_INTERVAL_S = 0.01
"""Longest time between the starts of two reads of a camera that returns at once. A driver queues some images and then
drops the new ones: read more slowly than the camera captures, it returns images that are several intervals old."""
SWITCH_INTERVAL_S = 0.0005
"""Python's switch interval during a run: with its 5 ms, four cameras can hold the interpreter for a whole tick."""


class StopRun(Exception):  # noqa: N818  not an error
    """The run ends; the reason is one of `RunnerSummary.reason`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class PolicyRunner:
    """Runs a policy on a robot at a fixed rate.

    Args:
        policy: Its spec names the views and state vectors.
        cameras: A function or an object with `read` per view; None for a camera that the robot does not have.
        send_action: Function that executes an action; it must return soon.
        safe_action: Action at which the robot stops, in the policy's shape.
        vectors: Function per state vector; called in every tick, so it must return soon.
        rate_hz: Ticks per second.
        max_frame_age_s: Greatest age of a frame that the policy may see.
        max_frozen_s: Time after which a camera that repeats the same bytes counts as frozen; None is
            `max_frame_age_s`, `math.inf` accepts cameras that show the same bytes for ever.
        on_stale: What happens while a view is stale or frozen.
        max_hold_s: Greatest time without a new action before the robot stops.
        limits: Limits of the actions.
        watchdog_s: Time without an action, such as in a policy that hangs, after which the robot stops; None is 0.5 s,
            or 5 ticks if that is more.
        start_timeout_s: Time to wait for the first frame of each camera.
        trace: File for the trace.
        store_frames: Also store the frames, for `replay_trace`.
        close_timeout_s: Greatest time that `close` takes.
        clock: Source of time; for tests.

    """

    def __init__(
        self,
        policy: PolicyLike,
        *,
        cameras: Mapping[str, Camera | None],
        send_action: Callable[[NDArray[Any]], None],
        safe_action: ArrayLike,
        vectors: Mapping[str, Callable[[], Any]] | None = None,
        rate_hz: float = 50.0,
        max_frame_age_s: float = 0.2,
        max_frozen_s: float | None = None,
        on_stale: OnStale = "mask",
        max_hold_s: float = 0.5,
        limits: ActionLimits = NO_LIMITS,
        watchdog_s: float | None = None,
        start_timeout_s: float = 5.0,
        trace: str | os.PathLike[str] | None = None,
        store_frames: bool = False,
        close_timeout_s: float = 2.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_above_zero(
            rate_hz=rate_hz,
            max_frame_age_s=max_frame_age_s,
            max_hold_s=max_hold_s,
            start_timeout_s=start_timeout_s,
            close_timeout_s=close_timeout_s,
        )
        check_on_stale(on_stale)
        max_frozen_s = resolve_max_frozen(max_frozen_s, max_frame_age_s=max_frame_age_s)
        self._period_s = 1.0 / rate_hz
        watchdog_s = resolve_watchdog(watchdog_s, period_s=self._period_s)
        self._policy, self._on_stale, self._max_hold_s = policy, on_stale, max_hold_s
        self._max_frame_age_s, self._limits, self._clock = max_frame_age_s, limits, clock
        self._start_timeout_s, self._close_timeout_s = start_timeout_s, close_timeout_s
        self._safe_action = np.array(safe_action)
        is_number = self._safe_action.dtype.kind in "fiu" and np.isfinite(self._safe_action).all()
        if self._safe_action.ndim > 1 or not is_number:
            raise ValueError(f"invalid safe_action: expected finite numbers or an integer, got {safe_action!r}")
        limits.check(self._safe_action)
        self._observer = Observer(
            policy.spec,
            cameras,
            vectors or {},
            max_frame_age_s=max_frame_age_s,
            max_frozen_s=max_frozen_s,
            clock=clock,
        )
        self._gate = ActionGate(send_action, self._safe_action, timeout_s=watchdog_s, clock=clock)
        self._last_sent, self._last_act_s = self._safe_action, -inf
        self.summary = RunnerSummary()
        """Counts so far."""
        self.hanging: list[str] = []
        """After `close`: cameras whose read has not returned, whose threads are abandoned."""
        self._settings: dict[str, Any] = {
            "rate_hz": rate_hz,
            "on_stale": on_stale,
            "max_frame_age_s": max_frame_age_s,
            "max_frozen_s": max_frozen_s if isfinite(max_frozen_s) else None,
            "max_hold_s": max_hold_s,
        }
        self._trace = None if trace is None else TraceWriter(trace, store_frames=store_frames)
        self._is_closed = False

    @classmethod
    def for_robot(cls, policy: PolicyLike, robot: RobotLike, **options: Unpack[RunnerOptions]) -> Self:
        """Return a runner for a robot object, with its cameras, state vectors, limits and safe action."""
        return cls(
            policy,
            cameras=robot.cameras,
            vectors=getattr(robot, "vectors", None),
            send_action=robot.send_action,
            safe_action=robot.safe_action,
            **{"limits": getattr(robot, "limits", None) or NO_LIMITS, **options},  # type: ignore[arg-type]
        )

    def run(self, seconds: float | None = None, on_tick: Callable[[Tick], None] | None = None) -> RunnerSummary:
        """Run until `seconds` have passed (None: no limit) or a rule stops the robot, and return the counts.

        `on_tick` is called after every tick. An error of the policy, the robot or `on_tick`, and Ctrl-C, are raised
        again after the safe action is sent. A runner runs once.
        """
        if seconds is not None:
            check_above_zero(seconds=seconds)
        if self.summary.reason != "running" or self.summary.ticks or self._is_closed:
            raise RuntimeError("the runner has already run: create a new PolicyRunner")
        summary, switch_interval_s = self.summary, sys.getswitchinterval()
        sys.setswitchinterval(min(switch_interval_s, SWITCH_INTERVAL_S))
        try:
            self._start()
            self._loop(inf if seconds is None else seconds, on_tick)
            summary.reason = "finished"
        except StopRun as stop:
            # A policy that hung until the watchdog acted also comes too late.
            summary.reason = "watchdog" if self._gate.is_tripped else stop.reason
            summary.detail = stop.detail
        except GateClosedError as error:
            summary.reason, summary.detail = "watchdog", str(error)
        except BaseException as error:
            summary.reason = "error" if isinstance(error, Exception) else "interrupted"
            summary.detail = f"{type(error).__name__}: {error}"
            raise
        finally:
            sys.setswitchinterval(switch_interval_s)
            self._stop()
        return summary

    def close(self) -> None:
        """Stop cameras, watchdog and trace within `close_timeout_s`; what hangs is abandoned."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.summary.reason != "running" and not self._gate.is_stopped:
            with suppress(Exception):  # an interrupt may have come between the end of the loop and the safe action
                self._stop()
        end_s = self._clock.now() + self._close_timeout_s
        self._gate.close(self._close_timeout_s / 2)
        self.hanging = self._observer.close(self._close_timeout_s / 2)
        if self._trace is not None:
            self._trace.put({"kind": "end", **self.summary.to_plain()})
            self._trace.close(max(0.0, end_s - self._clock.now()))
            self._count_trace()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """Open the cameras and try the policy; nothing moves before both work."""
        self._observer.start(interval_s=min(self._period_s / 2, MAX_READ_INTERVAL_S))
        missing = self._observer.wait_for_frames(self._start_timeout_s)
        if missing and (self._on_stale != "mask" or len(missing) == len(self._observer.feeds)):
            raise RuntimeError(
                f"no image within {self._start_timeout_s} s of {self._observer.describe_failures(missing)}. Check the "
                "cameras, or raise start_timeout_s."
            )
        # The first action of a network can take a second; and a wrong shape shows before the robot moves.
        self._policy.reset()
        self._check_action(self._policy.act(self._observer.make_blank()))
        self._policy.reset()
        if self._trace is not None:
            settings = {**self._settings, "limits": self._limits.to_plain()}
            self._trace.put(describe_start(self._policy.spec, self._safe_action, settings))

    def _loop(self, seconds: float, on_tick: Callable[[Tick], None] | None) -> None:
        clock, period_s = self._clock, self._period_s
        self._gate.start()
        start_s = scheduled_s = clock.now()
        for number in count():
            tick = self._observer.observe(number)
            try:
                self._act(tick)
            except BaseException as error:
                tick.outcome, tick.reason = "stop", getattr(error, "reason", type(error).__name__)
                tick.sent = None
                raise
            finally:
                now = clock.now()
                tick.deadline_missed = now > scheduled_s + period_s
                self._record(tick, now - start_s)
            if on_tick is not None:
                on_tick(tick)
            # A late tick starts the schedule anew: no burst of ticks follows. So does a clock that jumped back.
            now = clock.now()
            scheduled_s = scheduled_s + period_s if scheduled_s <= now <= scheduled_s + period_s else now
            clock.sleep_until(scheduled_s)
            if scheduled_s - start_s >= seconds - period_s / 2:
                self.summary.seconds = clock.now() - start_s
                return

    def _act(self, tick: Tick) -> None:
        """Choose and send the action of a tick; `StopRun` if the robot must stop."""
        stale = [name for name, reason in tick.masked.items() if reason != "absent"]
        hold_reason = ""
        if not tick.frames:
            raise StopRun("no_view", tick.describe_masked())
        if stale and self._on_stale == "stop":
            raise StopRun("stale", tick.describe_masked())
        if stale and self._on_stale == "hold":
            hold_reason = tick.describe_masked()
        else:
            try:
                tick.vectors = self._observer.read_vectors()
            except VectorError as error:
                hold_reason = str(error)
        if not hold_reason:
            hold_reason = self._ask_policy(tick)
        if hold_reason:
            self._hold(tick, hold_reason)
            return
        if tick.raw is None:
            raise RuntimeError("no action")
        tick.sent = self._limits.apply(tick.raw, self._last_sent, self._period_s)
        self._gate.send(tick.sent)
        self._last_sent, self._last_act_s = tick.sent, tick.time_s

    def _ask_policy(self, tick: Tick) -> str:
        """Set the policy's action; return a reason to hold if it came too late."""
        observation: dict[str, NDArray[Any] | None] = dict.fromkeys(tick.masked)
        # Copies: a policy may write into them, and torch warns about read-only memory.
        observation |= {name: frame.image.copy() for name, frame in tick.frames.items()}
        start_s = self._clock.now()
        raw = self._policy.act({**observation, **tick.vectors})
        now = self._clock.now()
        tick.policy_s = now - start_s
        tick.raw = self._check_action(raw)
        age_s = now - min(frame.captured_s for frame in tick.frames.values())
        if age_s > self._max_frame_age_s + self._period_s:
            return f"the action is of frames that are {age_s:.3f} s old now"
        return ""

    def _hold(self, tick: Tick, reason: str) -> None:
        """Repeat the last action, unless it is too old or the rule is to stop."""
        tick.outcome, tick.reason = "hold", reason
        if tick.raw is None:
            tick.frames, tick.vectors = {}, {}  # the policy saw nothing
        if self._on_stale == "stop":
            raise StopRun("stale", reason)
        if not 0 <= self._clock.now() - self._last_act_s <= self._max_hold_s:
            raise StopRun("hold_expired", reason)
        self._gate.send(self._last_sent)
        tick.sent = self._last_sent

    def _stop(self) -> None:
        """Send the safe action, whatever happened before."""
        try:
            self._gate.send_safe()
        finally:
            summary = self.summary
            summary.safe_action_sent = self._gate.is_stopped
            summary.camera_failures = {name: feed.num_failures for name, feed in self._observer.feeds.items()}
            self._count_trace()

    def _record(self, tick: Tick, seconds: float) -> None:
        self.summary.add(tick, seconds=seconds)
        if self._trace is not None:
            self._trace.put(tick)
            self._count_trace()

    def _count_trace(self) -> None:
        if self._trace is not None:
            self.summary.dropped_records, self.summary.trace_error = self._trace.num_dropped, self._trace.error
            self.summary.lost_frames = self._trace.num_lost_frames

    def _check_action(self, action: Any) -> NDArray[Any]:
        """Return a copy of an action; `ValueError` unless it has the safe action's shape and finite numbers."""
        values = np.array(action)
        is_number = values.dtype.kind in "fiu" and (values.dtype.kind == "f") == (self._safe_action.dtype.kind == "f")
        if values.shape != self._safe_action.shape or not is_number or not np.isfinite(values).all():
            raise ValueError(
                f"invalid action of the policy: expected finite numbers of shape {self._safe_action.shape} and of "
                f"{self._safe_action.dtype} kind, as safe_action, got {values.dtype} {values}"
            )
        return values
