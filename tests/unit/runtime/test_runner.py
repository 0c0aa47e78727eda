"""The control loop on a virtual clock: masks, holds, stops, limits, deadlines, the watchdog."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from manyview.runtime import ActionLimits, PolicyRunner, Tick
from tests.support.virtual_clock import FakeCamera, FakePolicy, FakeSpec, FakeVector, VirtualClock

SAFE = np.array([9.0, 9.0, 9.0], np.float32)
MAX_AGE_S, PERIOD_S = 0.2, 0.02


class RunnerHarness:
    """Runner with two fake cameras on a virtual clock, which records actions and ticks."""

    def __init__(
        self,
        *,
        front: dict[str, float] | None = None,
        wrist: dict[str, float] | None = None,
        spec: FakeSpec | None = None,
        on_act: Callable[["RunnerHarness", int], None] | None = None,
        **options: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.sent: list[NDArray[Any]] = []
        self.sent_s: list[float] = []
        self.ticks: list[Tick] = []
        self.sources = {"front": FakeCamera(self.clock, front), "wrist": FakeCamera(self.clock, wrist)}
        self.policy = FakePolicy(spec, on_act=None if on_act is None else lambda count: on_act(self, count))
        options = {"cameras": self.sources, "safe_action": SAFE, "send_action": self.send, **options}
        self.runner = PolicyRunner(self.policy, clock=self.clock, **options)
        self.start_s = self.clock.now()

    def send(self, action: NDArray[Any]) -> None:
        self.sent.append(action)
        self.sent_s.append(self.clock.now())

    def run(self, seconds: float = 1.0) -> Any:
        with self.runner:
            return self.runner.run(seconds, on_tick=self.ticks.append)

    def assert_stopped(self) -> None:
        assert (self.sent[-1] == SAFE).all()
        assert self.runner.summary.safe_action_sent

    def find_masked_s(self, view: str) -> float:
        """Return the time of the first tick in which the view is masked, since the start."""
        return next(tick.time_s for tick in self.ticks if view in tick.masked) - self.start_s


def have_equal_bytes(action: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    return action is not None and other is not None and action.tobytes() == other.tobytes()


def test_a_run_ticks_at_its_rate_and_ends_with_the_safe_action() -> None:
    harness = RunnerHarness(rate_hz=50)
    summary = harness.run(seconds=2.0)
    assert (summary.reason, summary.ticks, summary.deadline_misses, summary.held_ticks) == ("finished", 100, 0, 0)
    assert np.allclose(np.diff([tick.time_s for tick in harness.ticks]), PERIOD_S)
    assert len(harness.sent) == 101
    harness.assert_stopped()
    assert not summary.masked_ticks
    assert max(summary.max_age_s.values()) < 1 / 30 + PERIOD_S


FAULTS = ["die", "exit", "freeze", "lag", "none", "dtype", "shape", "hang"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("camera", ["front", "wrist"])
def test_a_faulty_camera_is_masked_within_the_greatest_age_and_a_tick(camera: str, fault: str) -> None:
    faults: dict[str, Any] = {camera: {fault: 1.0}}
    harness = RunnerHarness(**faults)
    if fault == "hang":
        harness.clock.hang_times_s[f"camera-{camera}"] = harness.clock.now() + 1.0
    summary = harness.run(seconds=2.0)
    assert summary.reason == "finished"
    assert 1.0 <= harness.find_masked_s(camera) <= 1.0 + MAX_AGE_S + PERIOD_S
    assert set(summary.masked_ticks) == {camera}
    ticks_after_fault = [tick for tick in harness.ticks if tick.time_s - harness.start_s > 1.0 + MAX_AGE_S + PERIOD_S]
    assert ticks_after_fault
    for tick in ticks_after_fault:
        assert camera in tick.masked
        assert camera not in tick.frames


@pytest.mark.parametrize("fault", FAULTS)
def test_no_tick_has_a_frame_that_is_too_old_or_frozen(fault: str) -> None:
    harness = RunnerHarness(front={fault: 0.5}, wrist={fault: 1.1})
    if fault == "hang":
        harness.clock.hang_times_s = {
            "camera-front": harness.clock.now() + 0.5,
            "camera-wrist": harness.clock.now() + 1.1,
        }
    assert harness.run(seconds=3.0).reason == "no_view"
    harness.assert_stopped()
    for tick in harness.ticks:
        for frame in tick.frames.values():
            assert 0 <= tick.time_s - frame.captured_s <= MAX_AGE_S
            assert tick.time_s - frame.changed_s <= MAX_AGE_S
    # The stop is within the greatest age and a tick of the fault of the second camera.
    assert harness.sent_s[-1] - harness.start_s <= 1.1 + MAX_AGE_S + PERIOD_S + 1e-9


def test_a_camera_that_recovers_is_used_again() -> None:
    harness = RunnerHarness(front={"die": 0.5})
    recover_s = harness.clock.now() + 1.0
    read = harness.sources["front"].read

    def read_or_recover() -> Any:
        if harness.clock.now() >= recover_s:
            harness.sources["front"].faults.clear()
        return read()

    harness.sources["front"].read = read_or_recover  # type: ignore[method-assign]
    harness.run(seconds=2.0)
    assert "front" in harness.ticks[45].masked
    assert "front" in harness.ticks[-1].frames


def test_masked_views_reach_the_policy_as_none() -> None:
    harness = RunnerHarness(front={"die": 0.5})
    harness.run(seconds=2.0)
    assert harness.sent[-2][0] == np.float32(-1.0) + np.float32(0.3) * np.float32(-1.0)


def test_hold_repeats_the_last_action_for_its_time_and_then_stops() -> None:
    harness = RunnerHarness(front={"die": 1.0}, on_stale="hold", max_hold_s=0.3)
    summary = harness.run(seconds=5.0)
    assert summary.reason == "hold_expired"
    assert "front" in summary.detail
    assert "unplugged" in summary.detail
    hold_ticks = [tick for tick in harness.ticks if tick.outcome == "hold"]
    assert len(hold_ticks) == summary.held_ticks == 15  # 0.3 s of 50 Hz
    act_ticks = [tick for tick in harness.ticks if tick.outcome == "act"]
    assert all(have_equal_bytes(tick.sent, act_ticks[-1].sent) for tick in hold_ticks)
    assert hold_ticks[-1].time_s - act_ticks[-1].time_s <= 0.3 + 1e-9
    harness.assert_stopped()


def test_hold_goes_back_to_acting_when_the_camera_recovers() -> None:
    harness = RunnerHarness(on_stale="hold", max_hold_s=1.0)
    read, start_s = harness.sources["front"].read, harness.clock.now()

    def read_with_gap() -> Any:
        return None if 0.5 <= harness.clock.now() - start_s < 1.0 else read()

    harness.sources["front"].read = read_with_gap  # type: ignore[method-assign]
    summary = harness.run(seconds=2.0)
    assert summary.reason == "finished"
    assert 10 <= summary.held_ticks <= 20


def test_stop_ends_the_run_at_the_first_stale_view() -> None:
    harness = RunnerHarness(wrist={"freeze": 1.0}, on_stale="stop")
    summary = harness.run(seconds=5.0)
    assert summary.reason == "stale"
    assert "wrist (frozen" in summary.detail
    assert harness.sent_s[-1] - harness.start_s <= 1.0 + MAX_AGE_S + PERIOD_S
    assert all(not tick.masked for tick in harness.ticks)
    harness.assert_stopped()


def test_a_camera_set_to_none_is_masked_and_does_not_stop_the_run() -> None:
    clock = VirtualClock()
    sent: list[Any] = []
    cameras = {"front": FakeCamera(clock), "wrist": None}
    with PolicyRunner(
        FakePolicy(), cameras=cameras, send_action=sent.append, safe_action=SAFE, on_stale="stop", clock=clock
    ) as runner:
        summary = runner.run(1.0)
    assert summary.reason == "finished"
    assert summary.masked_ticks == {"wrist": 50}


@pytest.mark.parametrize("error", [ValueError("bad network"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("failing_count", [1, 20])
def test_errors_and_interrupts_of_the_policy_stop_the_robot_and_are_raised(
    error: BaseException, failing_count: int
) -> None:
    def fail(_: RunnerHarness, count: int) -> None:
        if count == failing_count:
            raise error

    harness = RunnerHarness(on_act=fail)
    with pytest.raises(type(error)):
        harness.run()
    harness.assert_stopped()
    assert harness.runner.summary.reason == ("error" if isinstance(error, Exception) else "interrupted")


@pytest.mark.parametrize("value", [[math.nan, 0, 0], [math.inf, 0, 0], [0.0, 0.0], [[0.0, 0, 0]], "text", None])
def test_an_invalid_action_is_never_sent(value: Any) -> None:
    harness = RunnerHarness()
    act = harness.policy.act

    def act_invalidly(observation: Any) -> Any:
        valid_action = act(observation)
        return np.array(value) if harness.policy.num_acts > 10 else valid_action

    harness.policy.act = act_invalidly  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="invalid action of the policy"):
        harness.run()
    harness.assert_stopped()
    assert len(harness.sent) == 9 + 1


def test_an_action_of_the_wrong_shape_is_found_before_the_robot_moves() -> None:
    harness = RunnerHarness(safe_action=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        harness.run()
    assert len(harness.sent) == 1
    assert harness.sent[0].tolist() == [0, 0]


def test_an_error_of_the_robot_is_raised_after_the_safe_action() -> None:
    harness = RunnerHarness()
    send, calls = harness.send, []

    def fail_twice(action: NDArray[Any]) -> None:
        calls.append(action)
        if len(calls) in (10, 11, 12):  # an action, then two attempts to stop
            raise OSError("bus error")
        send(action)

    harness.runner._gate._send = fail_twice
    with pytest.raises(OSError, match="bus error"):
        harness.run()
    harness.assert_stopped()
    assert len(calls) == 13


def test_a_robot_that_cannot_be_stopped_is_reported() -> None:
    harness = RunnerHarness()

    def fail(_: NDArray[Any]) -> None:
        raise OSError("bus is gone")

    harness.runner._gate._send = fail
    with pytest.raises(OSError, match="bus is gone"):
        harness.run()
    assert not harness.runner.summary.safe_action_sent


def test_limits_clip_the_size_and_then_the_change_from_the_safe_action() -> None:
    limits = ActionLimits(low=[0.0, -1.0, -1.0], high=0.5, max_change_per_s=5.0)
    harness = RunnerHarness(safe_action=np.zeros(3, np.float32), limits=limits, wrist={"die": 0.3})
    summary = harness.run()
    actions = np.stack([np.zeros(3), *harness.sent[:-1]])
    assert actions[:, 0].min() >= 0
    assert actions.max() <= 0.5
    assert np.abs(np.diff(actions, axis=0)).max() == pytest.approx(5.0 * PERIOD_S, abs=1e-6)
    assert actions[-1, 1] == -1.0
    raw = np.stack([tick.raw for tick in harness.ticks if tick.raw is not None])
    assert raw.min() < -1.2
    assert 0 < summary.limited_ticks == sum(not have_equal_bytes(tick.raw, tick.sent) for tick in harness.ticks)


def test_a_late_tick_is_a_miss_and_restarts_the_schedule() -> None:
    def act_slowly(harness: RunnerHarness, count: int) -> None:
        if count in (11, 21):
            harness.clock.sleep(0.05)

    harness = RunnerHarness(on_act=act_slowly)
    summary = harness.run()
    assert summary.deadline_misses == 2
    gaps = np.diff([tick.time_s for tick in harness.ticks])
    assert sorted(np.round(gaps, 6))[-2:] == [0.05, 0.05]
    assert sorted(np.round(gaps, 6))[-3] == PERIOD_S  # no burst of shorter ticks follows
    assert min(gaps) > PERIOD_S - 1e-9


def test_an_action_of_old_frames_is_not_sent() -> None:
    def act_slowly(harness: RunnerHarness, count: int) -> None:
        if count == 11:
            harness.clock.sleep(0.3)

    harness = RunnerHarness(on_act=act_slowly, watchdog_s=1.0)
    summary = harness.run()
    (held_tick,) = [tick for tick in harness.ticks if tick.outcome == "hold"]
    assert held_tick.raw is not None
    assert held_tick.sent is harness.ticks[held_tick.number - 1].sent
    assert "old now" in held_tick.reason
    assert summary.reason == "finished"
    stopping_harness = RunnerHarness(on_act=act_slowly, watchdog_s=1.0, on_stale="stop")
    assert stopping_harness.run().reason == "stale"
    stopping_harness.assert_stopped()


def test_the_watchdog_stops_the_robot_while_the_policy_hangs() -> None:
    def hang(harness: RunnerHarness, count: int) -> None:
        if count == 11:
            harness.clock.sleep(30.0)

    harness = RunnerHarness(on_act=hang, watchdog_s=0.5, max_hold_s=100.0, max_frame_age_s=50.0, max_frozen_s=math.inf)
    summary = harness.run(seconds=60.0)
    assert summary.reason == "watchdog"
    assert (harness.sent[10 - 1 + 0] == SAFE).all()
    delay_s = harness.sent_s[9] - harness.sent_s[8]
    assert 0.5 < delay_s <= 0.5 * 1.25 + PERIOD_S
    assert all((action == SAFE).all() for action in harness.sent[9:])
    harness.assert_stopped()


def test_the_watchdog_does_not_stop_a_slow_but_regular_loop() -> None:
    harness = RunnerHarness(rate_hz=1.0, max_frame_age_s=0.2)
    summary = harness.run(seconds=20.0)
    assert (summary.reason, summary.ticks) == ("finished", 20)


VECTOR_SPEC = FakeSpec(vectors=(FakeVector("joints", 2),))


def test_nothing_is_sent_after_a_run_has_ended() -> None:
    """After a run the watchdog must not interrupt other control of the robot."""
    harness = RunnerHarness(watchdog_s=0.5)
    with harness.runner as runner:
        runner.run(0.2)
        num_sent = len(harness.sent)
        harness.clock.sleep(5.0)
    harness.assert_stopped()
    assert len(harness.sent) == num_sent


@pytest.mark.parametrize("rate_hz", [1.0, 5.0, 200.0])
def test_cameras_are_read_often_also_at_low_rates(rate_hz: float) -> None:
    """A driver that queues images would return old ones."""
    clock, reads_s = VirtualClock(), list[float]()

    def read() -> NDArray[np.uint8]:
        reads_s.append(clock.now())
        return np.full((8, 8, 3), len(reads_s) % 251, np.uint8)

    cameras: dict[str, Any] = {"front": read, "wrist": FakeCamera(clock)}
    runner = PolicyRunner(
        FakePolicy(), cameras=cameras, send_action=lambda _: None, safe_action=SAFE, rate_hz=rate_hz, clock=clock
    )
    with runner:
        runner.run(2.0)
    assert np.diff(reads_s).max() <= min(0.01, 0.5 / rate_hz) + 1e-9


def test_state_vectors_reach_the_policy() -> None:
    harness = RunnerHarness(spec=VECTOR_SPEC, vectors={"joints": lambda: [1, 2.5]})
    harness.run(seconds=0.1)
    assert harness.ticks[0].vectors["joints"].dtype == np.float32
    assert harness.sent[0][2] == 3.5


@pytest.mark.parametrize("invalid_vector", [[1.0], [1.0, math.nan], [1.0, math.inf], None, "x", OSError("bus")])
@pytest.mark.parametrize(
    ("on_stale", "reason"), [("mask", "hold_expired"), ("hold", "hold_expired"), ("stop", "stale")]
)
def test_an_invalid_state_vector_holds_and_then_stops(invalid_vector: Any, on_stale: str, reason: str) -> None:
    harness: RunnerHarness | None = None

    def read() -> Any:
        if harness is not None and harness.clock.now() - harness.start_s >= 0.5:
            if isinstance(invalid_vector, Exception):
                raise invalid_vector
            return invalid_vector
        return [1.0, 2.0]

    harness = RunnerHarness(spec=VECTOR_SPEC, vectors={"joints": read}, on_stale=on_stale)
    summary = harness.run(seconds=5.0)
    assert summary.reason == reason
    assert "joints" in summary.detail
    harness.assert_stopped()
    last_act_s = max(tick.time_s for tick in harness.ticks if tick.outcome == "act")
    assert last_act_s - harness.start_s < 0.5 + 1e-9


@pytest.mark.parametrize("seconds", [-50.0, -0.01, 50.0])
def test_a_clock_jump_never_makes_an_old_frame_valid(seconds: float) -> None:
    def jump(harness: RunnerHarness, count: int) -> None:
        if count == 21:
            harness.clock.jump(seconds)

    harness = RunnerHarness(on_act=jump)
    summary = harness.run(seconds=1.0)
    harness.assert_stopped()
    assert summary.reason == ("finished" if seconds == -0.01 else "no_view" if seconds < 0 else "hold_expired")
    for tick in harness.ticks:
        assert all(0 <= tick.time_s - frame.captured_s <= MAX_AGE_S for frame in tick.frames.values())


def test_new_frames_are_used_after_a_clock_jump_back() -> None:
    """Frames after the jump are used, although their times are smaller."""
    harness = RunnerHarness(start_timeout_s=1.0)
    observer = harness.runner._observer
    observer.start(interval_s=0.01)
    assert not observer.wait_for_frames(1.0)
    harness.clock.sleep(0.5)
    harness.clock.jump(-0.4)
    for camera in harness.sources.values():
        camera._start_s -= 0.4
    assert set(observer.observe(0).masked) == {"front", "wrist"}
    harness.clock.sleep(0.1)
    assert not observer.observe(1).masked


@pytest.mark.parametrize("on_stale", ["mask", "hold", "stop"])
def test_a_run_without_images_never_starts(on_stale: str) -> None:
    faults = {"die": 0.0}
    harness = RunnerHarness(front=faults, wrist={} if on_stale != "mask" else faults, on_stale=on_stale)
    with pytest.raises(RuntimeError, match=r"no image within 5.0 s of front \(OSError: unplugged\)"):
        harness.run()
    assert harness.policy.num_acts == 0
    assert len(harness.sent) == 1
    harness.assert_stopped()


def test_with_mask_a_run_starts_without_one_camera() -> None:
    harness = RunnerHarness(front={"die": 0.0})
    summary = harness.run(seconds=1.0)
    assert summary.masked_ticks == {"front": 50}
    assert harness.ticks[0].masked == {"front": "missing"}
    assert summary.camera_failures["front"] > 10


def test_skew_is_the_greatest_difference_between_captures() -> None:
    harness = RunnerHarness()
    harness.sources["wrist"]._start_s -= 0.02
    summary = harness.run()
    assert 0.013 < summary.max_skew_s < 1 / 30 + 0.02


def test_frozen_cameras_are_accepted_if_asked() -> None:
    harness = RunnerHarness(front={"freeze": 0.2}, wrist={"freeze": 0.2}, max_frozen_s=math.inf)
    assert harness.run().reason == "finished"


def test_an_interrupt_in_a_callback_stops_the_robot() -> None:
    harness = RunnerHarness()

    def interrupt(tick: Tick) -> None:
        if tick.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), harness.runner:
        harness.runner.run(1.0, on_tick=interrupt)
    harness.assert_stopped()
    assert len(harness.sent) == 7


def test_close_closes_the_sources_and_a_runner_runs_once() -> None:
    harness = RunnerHarness()
    harness.run(seconds=0.1)
    assert all(camera.closed for camera in harness.sources.values())
    with pytest.raises(RuntimeError, match="already run"):
        harness.runner.run(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_hz": 0}, "invalid rate_hz: expected a number above 0, got 0"),
        ({"rate_hz": -1.0}, "invalid rate_hz"),
        ({"rate_hz": math.nan}, "invalid rate_hz"),
        ({"rate_hz": math.inf}, "invalid rate_hz"),
        ({"rate_hz": "50"}, "invalid rate_hz"),
        ({"max_frame_age_s": 0.0}, "invalid max_frame_age_s"),
        ({"max_frozen_s": -1.0}, "invalid max_frozen_s"),
        ({"max_hold_s": math.nan}, "invalid max_hold_s"),
        ({"watchdog_s": 0.01}, "invalid watchdog_s: expected more than a tick of 0.02 s, got 0.01"),
        ({"on_stale": "ignore"}, "invalid on_stale: expected mask, hold, stop, got 'ignore'"),
        ({"safe_action": "stop"}, "invalid safe_action"),
        ({"safe_action": [[0.0]]}, "invalid safe_action"),
        ({"safe_action": [math.nan, 0, 0]}, "invalid safe_action: expected finite numbers"),
        ({"limits": ActionLimits(low=10.0)}, "invalid safe_action: expected values from 10.0 to None"),
        ({"limits": ActionLimits(high=[1.0, 2.0])}, r"invalid limit high: expected a number, or \(3,\) of them"),
        ({"limits": ActionLimits(max_change_per_s=0.0)}, "invalid limit max_change_per_s"),
        ({"limits": ActionLimits(low=0), "safe_action": 1}, "discrete actions have no limits"),
        ({"vectors": {"joints": list}}, "invalid vectors: expected none, as the policy, got joints"),
        ({"cameras": {"front": list}}, "invalid cameras: expected front, wrist, as the policy, got front"),
        ({"cameras": {"front": list, "wrist": list}}, "'front' and 'wrist' share a source"),
        ({"cameras": {"front": list, "wrist": 3}}, "invalid camera 'wrist': expected a function or an object"),
    ],
)
def test_invalid_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunnerHarness(**options)


def test_discrete_actions_run() -> None:
    harness = RunnerHarness(safe_action=0)
    harness.policy.act = lambda _: np.array(2)  # type: ignore[assignment, method-assign]
    harness.run(seconds=0.1)
    assert [int(action) for action in harness.sent] == [2] * 5 + [0]


def test_a_state_vector_that_never_works_stops_the_robot_at_once() -> None:
    harness = RunnerHarness(spec=VECTOR_SPEC, vectors={"joints": lambda: None})
    assert harness.run().reason == "hold_expired"
    assert len(harness.sent) == 1
    harness.assert_stopped()


def test_close_sends_the_safe_action_if_an_interrupt_prevented_it(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunnerHarness()
    send_safe = harness.runner._gate.send_safe

    def interrupt() -> None:
        monkeypatch.setattr(harness.runner._gate, "send_safe", send_safe)
        raise KeyboardInterrupt

    monkeypatch.setattr(harness.runner._gate, "send_safe", interrupt)
    with pytest.raises(KeyboardInterrupt):
        harness.run(seconds=0.1)
    harness.assert_stopped()


def test_a_policy_may_write_into_its_images() -> None:
    harness = RunnerHarness()
    act = harness.policy.act

    def act_and_write(observation: Any) -> Any:
        action = act(observation)
        for image in observation.values():
            image[:] = 0
        return action

    harness.policy.act = act_and_write  # type: ignore[method-assign]
    harness.run()
    assert harness.ticks[-1].frames["front"].image.max() > 0


@pytest.mark.parametrize("fault", ["die", "lag"])
def test_age_alone_masks_where_frozen_cameras_are_accepted(fault: str) -> None:
    harness = RunnerHarness(front={fault: 1.0}, max_frozen_s=math.inf)
    harness.run(seconds=2.0)
    assert harness.find_masked_s("front") <= 1.0 + MAX_AGE_S + PERIOD_S
    assert all(tick.time_s - frame.captured_s <= MAX_AGE_S for tick in harness.ticks for frame in tick.frames.values())


def test_a_held_tick_records_nothing_that_the_policy_did_not_see() -> None:
    harness = RunnerHarness(front={"die": 0.5}, on_stale="hold")
    harness.run(seconds=0.9)
    hold_ticks = [tick for tick in harness.ticks if tick.outcome == "hold"]
    assert hold_ticks
    assert not any(tick.frames or tick.vectors for tick in hold_ticks)


def test_the_policy_is_reset_after_it_was_tried_on_black_images() -> None:
    calls: list[str] = []
    harness = RunnerHarness(on_act=lambda _, __: calls.append("act"))
    harness.policy.reset = lambda: calls.append("reset")  # type: ignore[method-assign]
    harness.run(seconds=0.06)
    assert calls == ["reset", "act", "reset", "act", "act", "act"]
