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


class Session:
    """A robot with the cameras front and wrist on a virtual clock; keeps what was sent and every tick."""

    def __init__(
        self,
        *,
        front: dict[str, float] | None = None,
        wrist: dict[str, float] | None = None,
        spec: FakeSpec | None = None,
        on_act: Callable[["Session", int], None] | None = None,
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
    session = Session(rate_hz=50)
    summary = session.run(seconds=2.0)
    assert (summary.reason, summary.ticks, summary.deadline_misses, summary.held_ticks) == ("finished", 100, 0, 0)
    assert np.allclose(np.diff([tick.time_s for tick in session.ticks]), PERIOD_S)
    assert len(session.sent) == 101
    session.assert_stopped()
    assert not summary.masked_ticks
    assert max(summary.max_age_s.values()) < 1 / 30 + PERIOD_S


FAULTS = ["die", "exit", "freeze", "lag", "none", "dtype", "shape", "hang"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("camera", ["front", "wrist"])
def test_a_faulty_camera_is_masked_within_the_greatest_age_and_a_tick(camera: str, fault: str) -> None:
    faults: dict[str, Any] = {camera: {fault: 1.0}}
    session = Session(**faults)
    if fault == "hang":
        session.clock.hang_times_s[f"camera-{camera}"] = session.clock.now() + 1.0
    summary = session.run(seconds=2.0)
    assert summary.reason == "finished"
    assert 1.0 <= session.find_masked_s(camera) <= 1.0 + MAX_AGE_S + PERIOD_S
    assert set(summary.masked_ticks) == {camera}
    after = [tick for tick in session.ticks if tick.time_s - session.start_s > 1.0 + MAX_AGE_S + PERIOD_S]
    assert after
    for tick in after:
        assert camera in tick.masked
        assert camera not in tick.frames


@pytest.mark.parametrize("fault", FAULTS)
def test_no_tick_sees_a_frame_that_is_too_old_or_frozen(fault: str) -> None:
    session = Session(front={fault: 0.5}, wrist={fault: 1.1})
    if fault == "hang":
        session.clock.hang_times_s = {
            "camera-front": session.clock.now() + 0.5,
            "camera-wrist": session.clock.now() + 1.1,
        }
    assert session.run(seconds=3.0).reason == "no_view"
    session.assert_stopped()
    for tick in session.ticks:
        for frame in tick.frames.values():
            assert 0 <= tick.time_s - frame.captured_s <= MAX_AGE_S
            assert tick.time_s - frame.changed_s <= MAX_AGE_S
    # It stopped within the greatest age and a tick after the second camera failed.
    assert session.sent_s[-1] - session.start_s <= 1.1 + MAX_AGE_S + PERIOD_S + 1e-9


def test_a_camera_that_recovers_is_used_again() -> None:
    session = Session(front={"die": 0.5})
    recover_s = session.clock.now() + 1.0
    read = session.sources["front"].read

    def read_or_recover() -> Any:
        if session.clock.now() >= recover_s:
            session.sources["front"].faults.clear()
        return read()

    session.sources["front"].read = read_or_recover  # type: ignore[method-assign]
    session.run(seconds=2.0)
    assert "front" in session.ticks[45].masked
    assert "front" in session.ticks[-1].frames


def test_masked_views_reach_the_policy_as_none() -> None:
    session = Session(front={"die": 0.5})
    session.run(seconds=2.0)
    assert session.sent[-2][0] == np.float32(-1.0) + np.float32(0.3) * np.float32(-1.0)


def test_hold_repeats_the_last_action_for_its_time_and_then_stops() -> None:
    session = Session(front={"die": 1.0}, on_stale="hold", max_hold_s=0.3)
    summary = session.run(seconds=5.0)
    assert summary.reason == "hold_expired"
    assert "front" in summary.detail
    assert "unplugged" in summary.detail
    held = [tick for tick in session.ticks if tick.outcome == "hold"]
    assert len(held) == summary.held_ticks == 15  # 0.3 s of 50 Hz
    acted = [tick for tick in session.ticks if tick.outcome == "act"]
    assert all(have_equal_bytes(tick.sent, acted[-1].sent) for tick in held)
    assert held[-1].time_s - acted[-1].time_s <= 0.3 + 1e-9
    session.assert_stopped()


def test_hold_goes_back_to_acting_when_the_camera_recovers() -> None:
    session = Session(on_stale="hold", max_hold_s=1.0)
    read, start_s = session.sources["front"].read, session.clock.now()

    def read_with_gap() -> Any:
        return None if 0.5 <= session.clock.now() - start_s < 1.0 else read()

    session.sources["front"].read = read_with_gap  # type: ignore[method-assign]
    summary = session.run(seconds=2.0)
    assert summary.reason == "finished"
    assert 10 <= summary.held_ticks <= 20


def test_stop_ends_the_run_at_the_first_stale_view() -> None:
    session = Session(wrist={"freeze": 1.0}, on_stale="stop")
    summary = session.run(seconds=5.0)
    assert summary.reason == "stale"
    assert "wrist (frozen" in summary.detail
    assert session.sent_s[-1] - session.start_s <= 1.0 + MAX_AGE_S + PERIOD_S
    assert all(not tick.masked for tick in session.ticks)
    session.assert_stopped()


def test_a_camera_the_robot_lacks_is_masked_and_stops_nothing() -> None:
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
@pytest.mark.parametrize("at", [1, 20])
def test_errors_and_interrupts_of_the_policy_stop_the_robot_and_are_raised(error: BaseException, at: int) -> None:
    def fail(_: Session, count: int) -> None:
        if count == at:
            raise error

    session = Session(on_act=fail)
    with pytest.raises(type(error)):
        session.run()
    session.assert_stopped()
    assert session.runner.summary.reason == ("error" if isinstance(error, Exception) else "interrupted")


@pytest.mark.parametrize("value", [[math.nan, 0, 0], [math.inf, 0, 0], [0.0, 0.0], [[0.0, 0, 0]], "text", None])
def test_an_invalid_action_is_never_sent(value: Any) -> None:
    session = Session()
    act = session.policy.act

    def act_wrongly(observation: Any) -> Any:
        good = act(observation)
        return np.array(value) if session.policy.num_acts > 10 else good

    session.policy.act = act_wrongly  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="invalid action of the policy"):
        session.run()
    session.assert_stopped()
    assert len(session.sent) == 9 + 1


def test_an_action_of_the_wrong_shape_is_found_before_the_robot_moves() -> None:
    session = Session(safe_action=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        session.run()
    assert len(session.sent) == 1
    assert session.sent[0].tolist() == [0, 0]


def test_an_error_of_the_robot_is_raised_after_the_safe_action() -> None:
    session = Session()
    send, calls = session.send, []

    def fail_twice(action: NDArray[Any]) -> None:
        calls.append(action)
        if len(calls) in (10, 11, 12):  # an action, then two attempts to stop
            raise OSError("bus error")
        send(action)

    session.runner._gate._send = fail_twice
    with pytest.raises(OSError, match="bus error"):
        session.run()
    session.assert_stopped()
    assert len(calls) == 13


def test_a_robot_that_cannot_be_stopped_is_reported() -> None:
    session = Session()

    def fail(_: NDArray[Any]) -> None:
        raise OSError("bus is gone")

    session.runner._gate._send = fail
    with pytest.raises(OSError, match="bus is gone"):
        session.run()
    assert not session.runner.summary.safe_action_sent


def test_limits_clip_the_size_and_then_the_change_from_the_safe_action() -> None:
    limits = ActionLimits(low=[0.0, -1.0, -1.0], high=0.5, max_change_per_s=5.0)
    session = Session(safe_action=np.zeros(3, np.float32), limits=limits, wrist={"die": 0.3})
    summary = session.run()
    actions = np.stack([np.zeros(3), *session.sent[:-1]])
    assert actions[:, 0].min() >= 0
    assert actions.max() <= 0.5
    assert np.abs(np.diff(actions, axis=0)).max() == pytest.approx(5.0 * PERIOD_S, abs=1e-6)
    assert actions[-1, 1] == -1.0
    raw = np.stack([tick.raw for tick in session.ticks if tick.raw is not None])
    assert raw.min() < -1.2
    assert 0 < summary.limited_ticks == sum(not have_equal_bytes(tick.raw, tick.sent) for tick in session.ticks)


def test_a_late_tick_is_a_miss_and_starts_the_schedule_anew() -> None:
    def act_slowly(session: Session, count: int) -> None:
        if count in (11, 21):
            session.clock.sleep(0.05)

    session = Session(on_act=act_slowly)
    summary = session.run()
    assert summary.deadline_misses == 2
    gaps = np.diff([tick.time_s for tick in session.ticks])
    assert sorted(np.round(gaps, 6))[-2:] == [0.05, 0.05]
    assert sorted(np.round(gaps, 6))[-3] == PERIOD_S  # no shorter ones: no burst follows
    assert min(gaps) > PERIOD_S - 1e-9


def test_an_action_of_old_frames_is_not_sent() -> None:
    def act_slowly(session: Session, count: int) -> None:
        if count == 11:
            session.clock.sleep(0.3)

    session = Session(on_act=act_slowly, watchdog_s=1.0)
    summary = session.run()
    (late,) = [tick for tick in session.ticks if tick.outcome == "hold"]
    assert late.raw is not None
    assert late.sent is session.ticks[late.number - 1].sent
    assert "old now" in late.reason
    assert summary.reason == "finished"
    stopping = Session(on_act=act_slowly, watchdog_s=1.0, on_stale="stop")
    assert stopping.run().reason == "stale"
    stopping.assert_stopped()


def test_the_watchdog_stops_the_robot_while_the_policy_hangs() -> None:
    def hang(session: Session, count: int) -> None:
        if count == 11:
            session.clock.sleep(30.0)

    session = Session(on_act=hang, watchdog_s=0.5, max_hold_s=100.0, max_frame_age_s=50.0, max_frozen_s=math.inf)
    summary = session.run(seconds=60.0)
    assert summary.reason == "watchdog"
    assert (session.sent[10 - 1 + 0] == SAFE).all()
    hung_s = session.sent_s[9] - session.sent_s[8]
    assert 0.5 < hung_s <= 0.5 * 1.25 + PERIOD_S
    assert all((action == SAFE).all() for action in session.sent[9:])
    session.assert_stopped()


def test_the_watchdog_leaves_a_slow_but_regular_loop_alone() -> None:
    session = Session(rate_hz=1.0, max_frame_age_s=0.2)
    summary = session.run(seconds=20.0)
    assert (summary.reason, summary.ticks) == ("finished", 20)


VECTOR_SPEC = FakeSpec(vectors=(FakeVector("joints", 2),))


def test_nothing_is_sent_after_a_run_has_ended() -> None:
    """Whoever moves the robot now must not be interrupted by the watchdog."""
    session = Session(watchdog_s=0.5)
    with session.runner as runner:
        runner.run(0.2)
        num_sent = len(session.sent)
        session.clock.sleep(5.0)
    session.assert_stopped()
    assert len(session.sent) == num_sent


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
    session = Session(spec=VECTOR_SPEC, vectors={"joints": lambda: [1, 2.5]})
    session.run(seconds=0.1)
    assert session.ticks[0].vectors["joints"].dtype == np.float32
    assert session.sent[0][2] == 3.5


@pytest.mark.parametrize("wrong", [[1.0], [1.0, math.nan], [1.0, math.inf], None, "x", OSError("bus")])
@pytest.mark.parametrize(
    ("on_stale", "reason"), [("mask", "hold_expired"), ("hold", "hold_expired"), ("stop", "stale")]
)
def test_an_invalid_state_vector_holds_and_then_stops(wrong: Any, on_stale: str, reason: str) -> None:
    session: Session | None = None

    def read() -> Any:
        if session is not None and session.clock.now() - session.start_s >= 0.5:
            if isinstance(wrong, Exception):
                raise wrong
            return wrong
        return [1.0, 2.0]

    session = Session(spec=VECTOR_SPEC, vectors={"joints": read}, on_stale=on_stale)
    summary = session.run(seconds=5.0)
    assert summary.reason == reason
    assert "joints" in summary.detail
    session.assert_stopped()
    last_act_s = max(tick.time_s for tick in session.ticks if tick.outcome == "act")
    assert last_act_s - session.start_s < 0.5 + 1e-9


@pytest.mark.parametrize("seconds", [-50.0, -0.01, 50.0])
def test_a_clock_that_jumps_never_makes_an_old_frame_young(seconds: float) -> None:
    def jump(session: Session, count: int) -> None:
        if count == 21:
            session.clock.jump(seconds)

    session = Session(on_act=jump)
    summary = session.run(seconds=1.0)
    session.assert_stopped()
    assert summary.reason == ("finished" if seconds == -0.01 else "no_view" if seconds < 0 else "hold_expired")
    for tick in session.ticks:
        assert all(0 <= tick.time_s - frame.captured_s <= MAX_AGE_S for frame in tick.frames.values())


def test_a_clock_that_jumps_back_does_not_stop_new_frames() -> None:
    """Frames after the jump have smaller times than the one before, and count."""
    session = Session(start_timeout_s=1.0)
    observer = session.runner._observer
    observer.start(interval_s=0.01)
    assert not observer.wait_for_frames(1.0)
    session.clock.sleep(0.5)
    session.clock.jump(-0.4)
    for camera in session.sources.values():
        camera._start_s -= 0.4
    assert set(observer.observe(0).masked) == {"front", "wrist"}
    session.clock.sleep(0.1)
    assert not observer.observe(1).masked


@pytest.mark.parametrize("on_stale", ["mask", "hold", "stop"])
def test_a_run_without_images_never_starts(on_stale: str) -> None:
    faults = {"die": 0.0}
    session = Session(front=faults, wrist={} if on_stale != "mask" else faults, on_stale=on_stale)
    with pytest.raises(RuntimeError, match=r"no image within 5.0 s of front \(OSError: unplugged\)"):
        session.run()
    assert session.policy.num_acts == 0
    assert len(session.sent) == 1
    session.assert_stopped()


def test_with_mask_a_run_starts_without_one_camera() -> None:
    session = Session(front={"die": 0.0})
    summary = session.run(seconds=1.0)
    assert summary.masked_ticks == {"front": 50}
    assert session.ticks[0].masked == {"front": "missing"}
    assert summary.camera_failures["front"] > 10


def test_skew_is_the_greatest_difference_between_captures() -> None:
    session = Session()
    session.sources["wrist"]._start_s -= 0.02
    summary = session.run()
    assert 0.013 < summary.max_skew_s < 1 / 30 + 0.02


def test_frozen_cameras_are_accepted_if_asked() -> None:
    session = Session(front={"freeze": 0.2}, wrist={"freeze": 0.2}, max_frozen_s=math.inf)
    assert session.run().reason == "finished"


def test_an_interrupt_in_a_callback_stops_the_robot() -> None:
    session = Session()

    def interrupt(tick: Tick) -> None:
        if tick.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.runner:
        session.runner.run(1.0, on_tick=interrupt)
    session.assert_stopped()
    assert len(session.sent) == 7


def test_close_closes_the_sources_and_a_runner_runs_once() -> None:
    session = Session()
    session.run(seconds=0.1)
    assert all(camera.closed for camera in session.sources.values())
    with pytest.raises(RuntimeError, match="already run"):
        session.runner.run(1.0)


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
        Session(**options)


def test_discrete_actions_run() -> None:
    session = Session(safe_action=0)
    session.policy.act = lambda _: np.array(2)  # type: ignore[assignment, method-assign]
    session.run(seconds=0.1)
    assert [int(action) for action in session.sent] == [2] * 5 + [0]


def test_a_state_vector_that_never_works_stops_the_robot_at_once() -> None:
    session = Session(spec=VECTOR_SPEC, vectors={"joints": lambda: None})
    assert session.run().reason == "hold_expired"
    assert len(session.sent) == 1
    session.assert_stopped()


def test_close_sends_the_safe_action_if_an_interrupt_prevented_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    send_safe = session.runner._gate.send_safe

    def interrupt() -> None:
        monkeypatch.setattr(session.runner._gate, "send_safe", send_safe)
        raise KeyboardInterrupt

    monkeypatch.setattr(session.runner._gate, "send_safe", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.run(seconds=0.1)
    session.assert_stopped()


def test_a_policy_may_write_into_its_images() -> None:
    session = Session()
    act = session.policy.act

    def act_and_write(observation: Any) -> Any:
        action = act(observation)
        for image in observation.values():
            image[:] = 0
        return action

    session.policy.act = act_and_write  # type: ignore[method-assign]
    session.run()
    assert session.ticks[-1].frames["front"].image.max() > 0


@pytest.mark.parametrize("fault", ["die", "lag"])
def test_age_alone_masks_where_frozen_cameras_are_accepted(fault: str) -> None:
    session = Session(front={fault: 1.0}, max_frozen_s=math.inf)
    session.run(seconds=2.0)
    assert session.find_masked_s("front") <= 1.0 + MAX_AGE_S + PERIOD_S
    assert all(tick.time_s - frame.captured_s <= MAX_AGE_S for tick in session.ticks for frame in tick.frames.values())


def test_a_held_tick_records_nothing_that_the_policy_did_not_see() -> None:
    session = Session(front={"die": 0.5}, on_stale="hold")
    session.run(seconds=0.9)
    held = [tick for tick in session.ticks if tick.outcome == "hold"]
    assert held
    assert not any(tick.frames or tick.vectors for tick in held)


def test_the_policy_is_reset_after_it_was_tried_on_black_images() -> None:
    calls: list[str] = []
    session = Session(on_act=lambda _, __: calls.append("act"))
    session.policy.reset = lambda: calls.append("reset")  # type: ignore[method-assign]
    session.run(seconds=0.06)
    assert calls == ["reset", "act", "reset", "act", "act", "act"]
