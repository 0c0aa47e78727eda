import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from manyview.envs import (
    MASK,
    Camera,
    ContractError,
    FromObservation,
    MujocoCamera,
    MultiView,
    NotRestorable,
    Orbit,
    ViewWarning,
    get_views,
    make,
    restore,
    snapshot,
    wrap,
)
from manyview.envs.cameras.multiview import ViewSource
from manyview.envs.foreground import remove_background
from manyview.envs.testing import EnvironmentContract, are_equal
from manyview.envs.toy import HiddenGoal
from manyview.envs.views import Image, MultiViewEnv, Observation, State, View
from manyview.envs.wrappers.observation import ResizeViews, SelectViews
from manyview.runtime.image_resize import resize_image

GREEN = np.full((6, 8, 3), (0, 255, 0), np.uint8)
GREEN[0] = 7


class Arm(gym.Env[Any, Any]):
    """A robot arm with two images in its observation, one of them grey."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        {
            "joints": spaces.Box(-1.0, 1.0, (4,), np.float32),
            "pixels": spaces.Dict(
                {
                    "front": spaces.Box(0, 255, (6, 8, 3), np.uint8),
                    "wrist": spaces.Box(0, 255, (5, 5), np.uint8),
                    "depth": spaces.Box(0.0, 1.0, (5, 5, 1), np.float32),
                    "rgba": spaces.Box(0, 255, (5, 5, 4), np.uint8),
                    "torch": spaces.Box(0, 255, (3, 8, 9), np.uint8),
                }
            ),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.count = 0
        self.dead: set[str] = set()
        self.closed = False
        self._buffer = np.zeros((6, 8, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.count = 10 * int(self.np_random.integers(1, 10))
        return self._seen(), {"begun": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._seen(), float(np.sum(action)), False, self.count % 10 == 0, {"count": self.count}

    def _seen(self) -> Any:
        pixels = {
            "front": self.camera(),
            "wrist": np.full((5, 5), self.count, np.uint8) * np.eye(5, dtype=np.uint8),
            "depth": np.zeros((5, 5, 1), np.float32),
            "rgba": np.zeros((5, 5, 4), np.uint8),
            "torch": np.zeros((3, 8, 9), np.uint8),
        }
        return {
            "joints": np.zeros(4, np.float32),
            "pixels": {name: image for name, image in pixels.items() if name not in self.dead},
        }

    def camera(self) -> Image:
        """Drawn into the same memory every time, as drivers do."""
        self._buffer[:] = self.count
        self._buffer[0] = 200
        return self._buffer

    def close(self) -> None:
        self.closed = True

    def snapshot(self) -> State:
        return {"count": self.count}

    def restore(self, state: State) -> Any:
        self.count = state["count"]
        return self._seen()


class TestWrappedContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        env = Arm()
        views: dict[str, ViewSource] = {
            "front": "pixels/front",
            "wrist": FromObservation("pixels/wrist"),
            "again": lambda env: env.camera() // 2,
        }
        return wrap(MultiView(env, views=views), frame_stack=2)

    # The contract's own, but for the generator, which this arm does not keep in its state.
    def test_a_restored_snapshot_continues_exactly(self, env: gym.Env[Observation, Any]) -> None:
        env.reset(seed=1)
        before = env.step(np.zeros(2, np.float32))[0]
        state = snapshot(env)
        after = env.step(np.zeros(2, np.float32))[0]
        assert are_equal(restore(env, state), before)
        assert are_equal(env.step(np.zeros(2, np.float32))[0], after)


def test_images_come_out_of_the_observation_by_their_path() -> None:
    env = MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"})
    assert [(view.name, view.shape) for view in get_views(env)] == [("front", (6, 8, 3)), ("wrist", (5, 5, 1))]
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(np.ones(2, np.float32))
    assert env.observation_space.contains(observation)
    assert observation["wrist"].max() == info["count"]
    assert (reward, terminated, truncated, list(info)) == (2.0, False, info["count"] % 10 == 0, ["count"])
    assert env.action_space == Arm.action_space


def test_an_observation_that_is_an_image_is_a_view() -> None:
    class Screen(Arm):
        observation_space = spaces.Box(0, 255, (6, 8, 3), np.uint8)

        def _seen(self) -> Any:
            return self.camera()

    env = MultiView(Screen(), views={"screen": FromObservation()})
    observation, _ = env.reset(seed=0)
    assert observation["screen"][0].tolist() == [[200, 200, 200]] * 8


def test_later_pictures_leave_earlier_ones_alone() -> None:
    env = MultiView(Arm(), views={"front": "pixels/front", "side": lambda env: env.camera()})
    first, _ = env.reset(seed=0)
    kept = {name: part.copy() for name, part in first.items()}
    env.step(np.zeros(2, np.float32))
    assert are_equal(first, kept)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("pixels/top", r"no image for view 'v' .*: expected one of \['pixels/.* got 'pixels/top'"),
        ("joints/front", "got 'joints/front'"),
        ("joints", r"expected uint8 of height, width and 1 or 3 channels, got float32 of shape \(4,\)"),
        ("pixels/depth", r"got float32 .*\(scale it to 0..255 and convert it to uint8\)"),
        ("pixels/rgba", r"got uint8 of shape \(5, 5, 4\) \(with an alpha channel: image\[..., :3\] drops it\)"),
        ("pixels/torch", r"got uint8 of shape \(3, 8, 9\) \(channels first: transpose .* channels_first=True\)"),
    ],
)
def test_what_is_no_picture_in_the_observation_is_refused_with_the_remedy(path: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MultiView(Arm(), views={"v": path})


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (
            GREEN / 255,
            r"view 'v': expected uint8 of height.*got float64.*\(scale it to 0..255 and convert it to uint8\)",
        ),
        (GREEN.astype(int), r"\(convert it to uint8\)"),
        (GREEN.transpose(2, 0, 1), r"\(channels first"),
        (np.zeros((6, 8, 4), np.uint8), r"\(with an alpha channel"),
        (np.zeros((6, 8, 9), np.uint8), r"got uint8 of shape \(6, 8, 9\)"),
        (np.zeros((2, 6, 8, 3), np.uint8), r"got uint8 of shape \(2, 6, 8, 3\)"),
        (GREEN.tolist(), "got list"),
        (None, r"expected a first image .* got None\. .* declare the shape: Camera\(read, shape"),
    ],
)
def test_what_is_no_picture_from_a_function_is_refused_with_the_remedy(picture: Any, says: str) -> None:
    with pytest.raises(ContractError, match=says):
        MultiView(Arm(), views={"v": lambda: picture})


def test_a_picture_that_changes_its_size_later_is_refused_in_that_step() -> None:
    pictures = iter([GREEN, GREEN, GREEN[:4]])
    env = MultiView(Arm(), views={"v": lambda: next(pictures)})
    env.reset()
    with pytest.raises(ContractError, match=r"Arm.*view 'v': expected uint8 of shape \(6, 8, 3\), got .*resize it"):
        env.step(np.zeros(2, np.float32))


def test_a_declared_shape_is_held_to_from_the_first_picture() -> None:
    env = MultiView(Arm(), views={"v": Camera(lambda: GREEN, shape=(84, 84, 3))})
    with pytest.raises(ContractError, match=r"expected uint8 of shape \(84, 84, 3\), got uint8 of shape \(6, 8, 3\)"):
        env.reset()


def test_a_declared_shape_may_have_other_channels() -> None:
    env = MultiView(Arm(), views={"v": FromObservation("pixels/rgba", shape=(5, 5, 4)), "front": "pixels/front"})
    assert env.reset(seed=0)[0]["v"].shape == (5, 5, 4)


def test_a_declared_shape_needs_no_picture_to_begin_with() -> None:
    def read() -> Image:
        raise RuntimeError("not before the first reset")

    env = MultiView(Arm(), views={"v": Camera(read, shape=(6, 8, 3)), "front": "pixels/front"})
    assert get_views(env)[0].shape == (6, 8, 3)


def test_a_function_of_two_things_is_no_camera() -> None:
    with pytest.raises(TypeError, match="view 'v': expected a function without arguments or of the environment"):
        MultiView(Arm(), views={"v": np.full_like})


def flaky(answers: list[Any]) -> Callable[[], Any]:
    """Gives these one after the other; an exception is raised."""
    left = iter(answers)

    def read() -> Any:
        answer = next(left)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return read


def test_a_camera_that_fails_is_masked_counted_named_once_and_tried_again() -> None:
    cable = RuntimeError("no signal on the cable")
    answers = [GREEN, GREEN, cable, None, GREEN, cable, GREEN]
    env = MultiView(Arm(), views={"v": flaky(answers), "front": "pixels/front"})
    assert env.reset(seed=0)[0][MASK].tolist() == [1, 1]
    with pytest.warns(ViewWarning, match=r"view 'v' is absent \(RuntimeError: no signal on the cable\)") as heard:
        seen = [env.step(np.zeros(2, np.float32)) for _ in range(5)]
    assert [observation[MASK].tolist() for observation, *_ in seen] == [[0, 1], [0, 1], [1, 1], [0, 1], [1, 1]]
    assert [bool(observation["v"].any()) for observation, *_ in seen] == [False, False, True, False, True]
    reasons = [info.get("camera_failures") for *_, info in seen]
    cable_says = {"v": "RuntimeError: no signal on the cable"}
    assert reasons == [cable_says, {"v": "it returned None"}, None, cable_says, None]
    assert env.counts == {"camera_failures/v": 3, "camera_failures/front": 0}
    assert len(heard) == 2, "one for each run of failures"


def test_an_image_missing_from_the_observation_is_a_camera_that_fails() -> None:
    arm = Arm()
    env = MultiView(arm, views={"front": "pixels/front", "wrist": "pixels/wrist"})
    env.reset(seed=0)
    arm.dead = {"wrist"}
    with pytest.warns(ViewWarning, match="view 'wrist' is absent"):
        observation = env.step(np.zeros(2, np.float32))[0]
    assert observation[MASK].tolist() == [1, 0]


def test_an_episode_says_how_often_a_camera_was_absent() -> None:
    arm = Arm()
    env = wrap(MultiView(arm, views={"front": "pixels/front", "wrist": "pixels/wrist"}))
    env.reset(seed=0)
    arm.count, arm.dead = 5, {"wrist"}
    with pytest.warns(ViewWarning, match="'wrist' is absent"):
        infos = [env.step(np.zeros(2, np.float32))[4] for _ in range(5)]
    assert infos[-1]["episode"]["absent"] == {"wrist": 5}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("deadline_s", [None, 5.0])
def test_an_interrupt_is_not_taken_for_a_failing_camera(error: type[BaseException], deadline_s: float | None) -> None:
    env = MultiView(Arm(), views={"v": Camera(flaky([error()]), shape=(6, 8, 3), deadline_s=deadline_s)})
    with pytest.raises(error):
        env.reset()
    env.close()


def test_an_environment_without_states_cannot_be_restored() -> None:
    class Stateless(Arm):
        snapshot = None  # type: ignore[assignment]

    env = wrap(MultiView(Stateless(), views={"front": "pixels/front"}))
    env.reset()
    with pytest.raises(NotRestorable, match="has no method `snapshot`"):
        snapshot(env)


def test_two_views_cannot_be_none() -> None:
    with pytest.raises(ValueError, match="at least one view"):
        MultiView(Arm(), views={})


def make_arm() -> gym.Env[Observation, Any]:
    return MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"})


def test_ones_own_environment_is_made_by_its_path() -> None:
    env = make(f"{__name__}:make_arm", views=["wrist"], frame_stack=3)
    assert env.reset(seed=0)[0]["wrist"].shape == (5, 5, 3)


# Other sizes, channels and actions.


def test_cameras_of_different_sizes_become_the_images_of_a_run() -> None:
    env = MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"}, image_size=4)
    assert [view.shape for view in get_views(env)] == [(4, 4, 3), (4, 4, 1)]
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    raw = MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"}).reset(seed=0)[0]
    assert np.array_equal(observation["front"], resize_image(raw["front"], 4))
    assert np.array_equal(observation["wrist"], resize_image(raw["wrist"], 4))


@pytest.mark.parametrize("aspect", ["crop", "pad", "stretch"])
def test_the_aspect_is_that_of_every_view(aspect: Any) -> None:
    env = MultiView(Arm(), views={"v": lambda: GREEN}, image_size=4, aspect=aspect)
    assert np.array_equal(env.reset()[0]["v"], resize_image(GREEN, 4, aspect))


def test_the_size_of_the_camera_is_checked_before_it_is_resized() -> None:
    pictures = iter([GREEN, GREEN, GREEN[:4]])
    env = MultiView(Arm(), views={"v": lambda: next(pictures)}, image_size=4)
    env.reset()
    with pytest.raises(ContractError, match=r"view 'v': expected uint8 of shape \(6, 8, 3\), got .*\(4, 8, 3\)"):
        env.step(np.zeros(2, np.float32))


def test_a_camera_that_fails_is_black_in_the_size_of_the_images() -> None:
    env = MultiView(Arm(), views={"v": flaky([GREEN, None]), "front": "pixels/front"}, image_size=4)
    with pytest.warns(ViewWarning, match="absent"):
        observation, _ = env.reset()
    assert observation["v"].shape == (4, 4, 3)
    assert not observation["v"].any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"image_size": 0}, "invalid image_size"), ({"aspect": "fit"}, "invalid aspect: expected crop, pad, stretch")],
)
def test_an_invalid_size_or_aspect_is_refused_at_once(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MultiView(Arm(), views={"front": "pixels/front"}, **wrong)


@pytest.mark.parametrize("deadline_s", [None, 5.0])
def test_a_camera_of_opencv_shows_the_same_colors(deadline_s: float | None) -> None:
    bgr = GREEN.copy()
    bgr[..., 2] = 9  # a little red
    env = MultiView(Arm(), views={"v": Camera(lambda: bgr, channels="bgr", deadline_s=deadline_s)})
    assert env.reset()[0]["v"][3, 3].tolist() == [9, 255, 0]
    env.close()


def test_images_with_channels_first_are_taken_on_request() -> None:
    tall = np.zeros((3, 8, 9), np.uint8)
    tall[0, 1, 2] = 50
    views: dict[str, ViewSource] = {
        "camera": Camera(lambda: tall, channels_first=True),
        "torch": FromObservation("pixels/torch", channels_first=True, channels="bgr"),
    }
    env = MultiView(Arm(), views=views)
    assert [view.shape for view in get_views(env)] == [(8, 9, 3), (8, 9, 3)]
    assert env.reset()[0]["camera"][1, 2].tolist() == [50, 0, 0]


@pytest.mark.parametrize("source", [Camera, FromObservation])
def test_an_unknown_order_of_channels_is_refused(source: Any) -> None:
    with pytest.raises(ValueError, match="invalid channels: expected rgb or bgr, got 'rgba'"):
        source("pixels/front", channels="rgba")


class Joint(Arm):
    """Actions in degrees and newtons."""

    action_space = spaces.Box(np.array([-90, 0], np.float32), np.array([30, 4], np.float32))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return *super().step(action)[:4], {"action": action}


def test_actions_are_rescaled_on_request() -> None:
    env = wrap(MultiView(Joint(), views={"front": "pixels/front"}, rescale_actions=True))
    assert env.action_space == spaces.Box(-1.0, 1.0, (2,), np.float32)
    env.reset(seed=0)
    for action, expected in (([-1, -1], [-90, 0]), ([1, 1], [30, 4]), ([0, 0.5], [-30, 3])):
        assert env.step(np.array(action, np.float32))[4]["action"].tolist() == expected
    raw = MultiView(Joint(), views={"front": "pixels/front"})
    assert raw.action_space == Joint.action_space


def test_rescaled_actions_keep_snapshots() -> None:
    env = wrap(MultiView(Joint(), views={"front": "pixels/front"}, rescale_actions=True))
    env.reset(seed=0)
    state, expected = snapshot(env), env.step(np.zeros(2, np.float32))[0]
    restore(env, state)
    assert are_equal(env.step(np.zeros(2, np.float32))[0], expected)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(0.0, np.inf, (2,), np.float32),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Discrete(3),
    ],
)
def test_actions_without_finite_bounds_cannot_be_rescaled(space: Any) -> None:
    arm = Arm()
    arm.action_space = space
    with pytest.raises(ValueError, match="cannot rescale actions: expected a Box of floats with finite bounds, got"):
        MultiView(arm, views={"front": "pixels/front"}, rescale_actions=True)


class Silhouette(MultiViewEnv):
    """A camera and its foreground."""

    def __init__(self) -> None:
        views = [View("side", 6, 8), View("side_foreground", 6, 8, derived_from="side", fill=(9, 9, 9))]
        super().__init__(views, spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        super().reset(seed=seed, options=options)
        image = np.random.default_rng(0).integers(20, 256, (6, 8, 3), dtype=np.uint8)
        foreground = np.zeros((6, 8), np.bool_)
        foreground[1, 2] = True
        return self.observe({"side": image, "side_foreground": remove_background(image, foreground, (9, 9, 9))}), {}


def test_a_derived_view_is_cut_out_of_its_resized_camera() -> None:
    env = wrap(Silhouette(), image_size=3)
    seen, _ = env.reset()
    foreground = np.zeros((3, 3), np.bool_)
    foreground[0, 0] = True  # the crop takes columns 1 to 6
    assert np.array_equal(seen["side_foreground"], remove_background(seen["side"], foreground, (9, 9, 9)))


def test_a_wrong_image_is_named_before_it_is_resized() -> None:
    class Wrong(Silhouette):
        def reset(self, **options: Any) -> tuple[Observation, Any]:
            observation, info = super().reset(**options)
            return {**observation, "side": observation["side"][:4]}, info

    with pytest.raises(ContractError, match=r"view 'side': expected uint8 of shape \(6, 8, 3\)"):
        wrap(Wrong(), image_size=3).reset()


def test_a_restored_observation_is_resized_and_selected_too() -> None:
    env = SelectViews(ResizeViews(HiddenGoal(), 7), ["row"])
    env.reset(seed=0)
    expected = env.step(0)[0]
    assert expected["row"].shape == (7, 7, 1)
    assert are_equal(env.restore(env.snapshot()), expected)


class TestResizedContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return wrap(HiddenGoal(), image_size=7, frame_stack=2)


# Cameras that arrive late.


class SlowCamera:
    """Gives a new picture, the number of which it carries, whenever it is let to."""

    def __init__(self) -> None:
        self.number = 0
        self._may = threading.Semaphore(0)

    def let(self, pictures: int = 1) -> None:
        for _ in range(pictures):
            self._may.release()

    def read(self) -> Image:
        assert self._may.acquire(timeout=300)
        self.number += 1
        return np.full((4, 4, 1), self.number, np.uint8)


@pytest.fixture
def slow() -> Iterator[SlowCamera]:
    camera = SlowCamera()
    yield camera
    camera.let(1000)  # whoever still waits may go


class Robot(Arm):
    """In each step the slow camera takes some pictures, the first by a read that started before, and time passes."""

    def __init__(self, camera: SlowCamera) -> None:
        super().__init__()
        self._camera = camera
        self.pictures, self.step_s = 2, 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wanted = self._camera.number + self.pictures
        self._camera.let(self.pictures)
        while self._camera.number < wanted:
            time.sleep(0.001)
        time.sleep(self.step_s)
        return super().step(action)

    def close(self) -> None:
        super().close()
        self._camera.let(1000)


def late(camera: SlowCamera, *, deadline_s: float) -> MultiView:
    views: dict[str, ViewSource] = {
        "slow": Camera(camera.read, deadline_s=deadline_s, shape=(4, 4, 1)),
        "front": "pixels/front",
    }
    return MultiView(Robot(camera), views=views)


def test_a_camera_with_a_deadline_shows_its_newest_picture(slow: SlowCamera) -> None:
    env = late(slow, deadline_s=10.0)
    slow.let(2)
    assert env.reset(seed=0)[0]["slow"].max() == 2
    env.unwrapped.pictures = 3  # type: ignore[attr-defined]
    observation = env.step(np.zeros(2, np.float32))[0]
    assert observation[MASK].tolist() == [1, 1]
    assert observation["slow"].max() in (4, 5)  # the fifth picture may just not have been handed over
    env.close()


def test_a_camera_that_misses_its_deadline_is_absent_and_the_robot_goes_on(slow: SlowCamera) -> None:
    env = late(slow, deadline_s=0.02)
    slow.let(2)
    env.reset(seed=0)
    env.unwrapped.pictures = 0  # type: ignore[attr-defined]
    with pytest.warns(ViewWarning, match=r"view 'slow' is absent \(TimeoutError: no new image within 0.02 s\)"):
        observation, *_, info = env.step(np.zeros(2, np.float32))
    assert observation[MASK].tolist() == [0, 1]
    assert info["camera_failures"] == {"slow": "TimeoutError: no new image within 0.02 s"}
    env.close()


def test_a_picture_from_before_the_step_is_not_new(slow: SlowCamera) -> None:
    env = late(slow, deadline_s=0.05)
    slow.let(2)
    env.reset(seed=0)
    slow.let()  # while the agent thinks
    reader: Any = env._readers["slow"]
    while reader._latest_frame.newest.max() < 3:
        time.sleep(0.001)
    env.unwrapped.pictures = 0  # type: ignore[attr-defined]
    with pytest.warns(ViewWarning, match="no new image"):
        assert env.step(np.zeros(2, np.float32))[0][MASK].tolist() == [0, 1]
    env.close()


@pytest.mark.parametrize(("pictures", "step_s"), [(1, 0.0), (2, 0.2)])
def test_a_picture_that_may_not_show_the_end_of_the_step_is_not_new(
    slow: SlowCamera, pictures: int, step_s: float
) -> None:
    """Its read started before the step, or more than the deadline before the end of a long one."""
    env = late(slow, deadline_s=0.05)
    slow.let(2)
    env.reset(seed=0)
    robot: Any = env.unwrapped
    robot.pictures, robot.step_s = pictures, step_s
    time.sleep(0.05)  # the next read has started
    with pytest.warns(ViewWarning, match="no new image"):
        assert env.step(np.zeros(2, np.float32))[0][MASK].tolist() == [0, 1]
    env.close()


def test_several_cameras_that_hang_cost_one_deadline_together(slow: SlowCamera) -> None:
    views: dict[str, Any] = {f"slow{number}": Camera(slow.read, deadline_s=0.3, shape=(4, 4, 1)) for number in range(4)}
    env = MultiView(Arm(), views={**views, "front": "pixels/front"})
    began = time.monotonic()
    with pytest.warns(ViewWarning, match="absent"):
        env.reset(seed=0)
    assert 0.3 <= time.monotonic() - began < 0.9
    slow.let(1000)
    env.close()


def test_a_camera_that_raises_in_its_thread_is_absent_at_once() -> None:
    def read() -> Image:
        raise OSError("unplugged")

    env = MultiView(Arm(), views={"v": Camera(read, deadline_s=60.0, shape=(6, 8, 3)), "front": "pixels/front"})
    began = time.monotonic()
    with pytest.warns(ViewWarning, match=r"view 'v' is absent \(OSError: unplugged\)"):
        env.reset()
    assert time.monotonic() - began < 30
    env.close()


def test_the_shape_of_a_camera_with_a_deadline_is_seen_from_its_first_picture() -> None:
    def read() -> Image:
        time.sleep(0.01)
        return GREEN

    env = MultiView(Arm(), views={"v": Camera(read, deadline_s=1.0)})
    assert get_views(env)[0].shape == (6, 8, 3)
    env.close()


def test_closing_leaves_no_thread_behind(slow: SlowCamera) -> None:
    before = threading.active_count()
    env = late(slow, deadline_s=0.01)
    slow.let(2)
    env.reset(seed=0)
    assert threading.active_count() == before + 1
    env.close()
    assert threading.active_count() == before
    env.close()


def test_an_environment_that_could_not_be_made_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    views: dict[str, ViewSource] = {"v": Camera(lambda: GREEN, deadline_s=1.0), "wrong": lambda: GREEN / 255}
    with pytest.raises(ContractError):
        MultiView(Arm(), views=views)
    assert threading.active_count() == before


def test_an_environment_that_nobody_closes_ends_its_threads_when_it_is_collected() -> None:
    before = threading.active_count()
    env = MultiView(Arm(), views={"v": Camera(lambda: GREEN, deadline_s=1.0)})
    gone = weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None
    patience_s = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < patience_s:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_deadline_is_a_time() -> None:
    with pytest.raises(ValueError, match="invalid deadline_s: expected a value above 0, or None, got 0"):
        Camera(lambda: GREEN, deadline_s=0)


# MuJoCo.

FRONT = Orbit("torso", distance=3.0, azimuth=180.0)


def hopper(**views: MujocoCamera) -> MultiView:
    for package in ("mujoco", "imageio"):
        pytest.importorskip(package, reason='pip install "manyview[mujoco]"')
    views = views or {
        "side": MujocoCamera("track", quality="fast"),
        "front": MujocoCamera(FRONT, size=(48, 64), quality="fast"),
    }
    return MultiView(gym.make("Hopper-v5"), views=views)


@pytest.mark.simulator
class TestHopperContract(EnvironmentContract):
    episode_end = "terminated"
    can_restore = False
    max_episode_steps = 300

    def make_env(self) -> gym.Env[Observation, Any]:
        return wrap(hopper(), frame_stack=3)


@pytest.mark.simulator
def test_cameras_by_name_and_number_and_from_anywhere_show_different_things() -> None:
    env = hopper(
        named=MujocoCamera("track", size=40, quality="fast"),
        numbered=MujocoCamera(0, size=40, quality="fast"),
        front=MujocoCamera(FRONT, size=40, quality="fast"),
        top=MujocoCamera(Orbit("torso", distance=3.0, elevation=-90.0), size=40, quality="fast"),
    )
    first, _ = env.reset(seed=0)
    later = [env.step(env.action_space.sample())[0] for _ in range(5)][-1]
    env.close()
    assert np.array_equal(first["named"], first["numbered"])
    assert not np.array_equal(first["named"], first["front"])
    assert not np.array_equal(first["front"], first["top"])
    for name in ("named", "front", "top"):
        assert first[name].std() > 10, f"{name} is flat"
        assert not np.array_equal(first[name], later[name])


@pytest.mark.simulator
def test_a_body_is_followed_wherever_it_goes() -> None:
    env = hopper(front=MujocoCamera(FRONT, size=40, quality="fast"))
    env.reset(seed=0)
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    near = env.step(np.zeros(3, np.float32))[0]["front"]
    data.qpos[0] += 40.0
    far = env.step(np.zeros(3, np.float32))[0]["front"]
    env.close()
    # The floor and the sky are grey, the hopper is brown.
    brown = [(picture[..., 0].astype(int) - picture[..., 2] > 30).sum() for picture in (near, far)]
    assert brown[0] > 20, "the hopper is not in sight"
    assert brown[1] == pytest.approx(brown[0], rel=0.2)


@pytest.mark.simulator
@pytest.mark.parametrize("quality", ["standard", "fast"])
def test_a_view_is_what_mujocos_own_renderer_draws(quality: Any) -> None:
    """In a process of its own: a `mujoco.Renderer` in this one could spoil the pictures of other tests."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_equals_mujocos_own, (quality,))


def _equals_mujocos_own(quality: Any) -> bool:
    from manyview.envs.rendering.gl import configure_headless_gl, set_render_quality

    configure_headless_gl()  # before mujoco is imported
    import mujoco

    env = hopper(
        side=MujocoCamera("track", size=(30, 40), quality=quality), big=MujocoCamera(0, size=64, quality=quality)
    )
    env.reset(seed=0)
    observation = [env.step(env.action_space.sample())[0] for _ in range(3)][-1]
    bare: Any = env.unwrapped
    set_render_quality(bare.model.vis, quality, 64)
    renderer = mujoco.Renderer(bare.model, 30, 40)
    if quality == "fast":
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
    renderer.update_scene(bare.data, "track")
    same = np.array_equal(renderer.render(), observation["side"])
    renderer.close()
    env.close()
    return same


@pytest.mark.simulator
def test_the_model_keeps_its_own_settings() -> None:
    env = hopper()
    visual: Any = env.unwrapped.model.vis  # type: ignore[attr-defined]
    assert (visual.quality.offsamples, visual.quality.numslices) != (0, 12)
    assert min(visual.global_.offwidth, visual.global_.offheight) >= 480
    env.close()


@pytest.mark.simulator
def test_drawing_beside_others_in_one_process_disturbs_neither() -> None:
    """Two of ours and one of dm_control, drawn in turn, closed and collected."""
    pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')
    env, twin = hopper(), hopper()
    control = make("dmc/cheetah_run", views=("side",), render_quality="fast")
    steady, _ = env.reset(seed=0)
    theirs, _ = control.reset(seed=0)
    twin.reset(seed=1)
    for ending in (lambda: None, twin.close, gc.collect):
        ending()
        assert are_equal(env.reset(seed=0)[0], steady)
        assert are_equal(control.reset(seed=0)[0], theirs)
    env.close()
    control.close()


@pytest.mark.simulator
def test_a_camera_that_the_model_does_not_have_is_answered_with_those_it_has() -> None:
    with pytest.raises(
        ValueError, match=r"view 'v': unknown camera: expected one of 0 'track', got 'back'. .* an Orbit"
    ):
        hopper(v=MujocoCamera("back"))
    with pytest.raises(ValueError, match="view 'v': unknown camera: expected one of 0 'track', got 1"):
        hopper(v=MujocoCamera(1))
    with pytest.raises(
        ValueError, match=r"view 'v': unknown body .* expected one of 0 'world', 1 'torso', .*, got 'head'"
    ):
        hopper(v=MujocoCamera(Orbit("head", distance=1.0)))


def test_a_mujoco_camera_of_an_environment_without_mujoco_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"has no MuJoCo `model` and `data`\. For other simulators give a render function"
    ):
        MultiView(Arm(), views={"v": MujocoCamera("track")})
    with pytest.raises(TypeError, match="has no MuJoCo"):
        MultiView(HiddenGoal(), views={"v": MujocoCamera("track")})
