"""Views of any Gymnasium environment: sources, sizes, failures, deadlines and MuJoCo cameras."""

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
    """Robot arm with images in its observation, one of them gray, some of invalid types."""

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
        self.missing_images: set[str] = set()
        self.closed = False
        self._buffer = np.zeros((6, 8, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.count = 10 * int(self.np_random.integers(1, 10))
        return self._observe(), {"begun": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), float(np.sum(action)), False, self.count % 10 == 0, {"count": self.count}

    def _observe(self) -> Any:
        pixels = {
            "front": self.read_camera(),
            "wrist": np.full((5, 5), self.count, np.uint8) * np.eye(5, dtype=np.uint8),
            "depth": np.zeros((5, 5, 1), np.float32),
            "rgba": np.zeros((5, 5, 4), np.uint8),
            "torch": np.zeros((3, 8, 9), np.uint8),
        }
        return {
            "joints": np.zeros(4, np.float32),
            "pixels": {name: image for name, image in pixels.items() if name not in self.missing_images},
        }

    def read_camera(self) -> Image:
        """Return an image in the same memory every time, as drivers do."""
        self._buffer[:] = self.count
        self._buffer[0] = 200
        return self._buffer

    def close(self) -> None:
        self.closed = True

    def snapshot(self) -> State:
        return {"count": self.count}

    def restore(self, state: State) -> Any:
        self.count = state["count"]
        return self._observe()


class TestWrappedContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        env = Arm()
        views: dict[str, ViewSource] = {
            "front": "pixels/front",
            "wrist": FromObservation("pixels/wrist"),
            "again": lambda env: env.read_camera() // 2,
        }
        return wrap(MultiView(env, views=views), frame_stack=2)

    # As in the contract, but without the random generator, which this arm does not save.
    def test_a_restored_snapshot_continues_exactly(self, env: gym.Env[Observation, Any]) -> None:
        env.reset(seed=1)
        expected = env.step(np.zeros(2, np.float32))[0]
        state = snapshot(env)
        next_observation = env.step(np.zeros(2, np.float32))[0]
        assert are_equal(restore(env, state), expected)
        assert are_equal(env.step(np.zeros(2, np.float32))[0], next_observation)


def test_images_are_read_from_the_observation_by_path() -> None:
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

        def _observe(self) -> Any:
            return self.read_camera()

    env = MultiView(Screen(), views={"screen": FromObservation()})
    observation, _ = env.reset(seed=0)
    assert observation["screen"][0].tolist() == [[200, 200, 200]] * 8


def test_later_images_do_not_change_earlier_ones() -> None:
    env = MultiView(Arm(), views={"front": "pixels/front", "side": lambda env: env.read_camera()})
    first, _ = env.reset(seed=0)
    copies = {name: values.copy() for name, values in first.items()}
    env.step(np.zeros(2, np.float32))
    assert are_equal(first, copies)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("pixels/top", r"no image for view 'v' .*: expected one of \['pixels/.* got 'pixels/top'"),
        ("joints/front", "got 'joints/front'"),
        ("joints", r"expected uint8 of height, width and 1 or 3 channels, got float32 of shape \(4,\)"),
        ("pixels/depth", r"got float32 .*\(scale it to 0..255 and convert it to uint8\)"),
        ("pixels/rgba", r"got uint8 of shape \(5, 5, 4\) \(with an alpha channel: image\[..., :3\] drops it\)"),
        ("pixels/torch", r"got uint8 of shape \(3, 8, 9\) \(channels first: transpose .* channels_first=True\)"),
    ],
)
def test_an_invalid_image_in_the_observation_is_refused_with_a_remedy(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiView(Arm(), views={"v": path})


@pytest.mark.parametrize(
    ("image", "message"),
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
def test_an_invalid_image_from_a_function_is_refused_with_a_remedy(image: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        MultiView(Arm(), views={"v": lambda: image})


def test_an_image_that_changes_its_size_later_is_refused_in_that_step() -> None:
    images = iter([GREEN, GREEN, GREEN[:4]])
    env = MultiView(Arm(), views={"v": lambda: next(images)})
    env.reset()
    with pytest.raises(ContractError, match=r"Arm.*view 'v': expected uint8 of shape \(6, 8, 3\), got .*resize it"):
        env.step(np.zeros(2, np.float32))


def test_a_declared_shape_is_checked_from_the_first_image() -> None:
    env = MultiView(Arm(), views={"v": Camera(lambda: GREEN, shape=(84, 84, 3))})
    with pytest.raises(ContractError, match=r"expected uint8 of shape \(84, 84, 3\), got uint8 of shape \(6, 8, 3\)"):
        env.reset()


def test_a_declared_shape_may_have_other_channels() -> None:
    env = MultiView(Arm(), views={"v": FromObservation("pixels/rgba", shape=(5, 5, 4)), "front": "pixels/front"})
    assert env.reset(seed=0)[0]["v"].shape == (5, 5, 4)


def test_a_declared_shape_needs_no_image_at_construction() -> None:
    def read() -> Image:
        raise RuntimeError("not before the first reset")

    env = MultiView(Arm(), views={"v": Camera(read, shape=(6, 8, 3)), "front": "pixels/front"})
    assert get_views(env)[0].shape == (6, 8, 3)


def test_a_function_of_two_arguments_is_refused_as_a_camera() -> None:
    with pytest.raises(TypeError, match="view 'v': expected a function without arguments or of the environment"):
        MultiView(Arm(), views={"v": np.full_like})


def make_flaky_camera(results: list[Any]) -> Callable[[], Any]:
    """Return a camera function that returns these results in turn, and raises exceptions."""
    remaining = iter(results)

    def read() -> Any:
        result = next(remaining)
        if isinstance(result, BaseException):
            raise result
        return result

    return read


def test_a_camera_that_fails_is_masked_counted_named_once_and_retried() -> None:
    error = RuntimeError("no signal on the cable")
    results = [GREEN, GREEN, error, None, GREEN, error, GREEN]
    env = MultiView(Arm(), views={"v": make_flaky_camera(results), "front": "pixels/front"})
    assert env.reset(seed=0)[0][MASK].tolist() == [1, 1]
    with pytest.warns(
        ViewWarning, match=r"view 'v' is absent \(RuntimeError: no signal on the cable\)"
    ) as caught_warnings:
        steps = [env.step(np.zeros(2, np.float32)) for _ in range(5)]
    assert [observation[MASK].tolist() for observation, *_ in steps] == [[0, 1], [0, 1], [1, 1], [0, 1], [1, 1]]
    assert [bool(observation["v"].any()) for observation, *_ in steps] == [False, False, True, False, True]
    reasons = [info.get("camera_failures") for *_, info in steps]
    error_reason = {"v": "RuntimeError: no signal on the cable"}
    assert reasons == [error_reason, {"v": "it returned None"}, None, error_reason, None]
    assert env.counts == {"camera_failures/v": 3, "camera_failures/front": 0}
    assert len(caught_warnings) == 2, "one for each run of failures"


def test_an_image_missing_from_the_observation_is_a_camera_that_fails() -> None:
    arm = Arm()
    env = MultiView(arm, views={"front": "pixels/front", "wrist": "pixels/wrist"})
    env.reset(seed=0)
    arm.missing_images = {"wrist"}
    with pytest.warns(ViewWarning, match="view 'wrist' is absent"):
        observation = env.step(np.zeros(2, np.float32))[0]
    assert observation[MASK].tolist() == [1, 0]


def test_the_episode_info_counts_steps_without_a_camera() -> None:
    arm = Arm()
    env = wrap(MultiView(arm, views={"front": "pixels/front", "wrist": "pixels/wrist"}))
    env.reset(seed=0)
    arm.count, arm.missing_images = 5, {"wrist"}
    with pytest.warns(ViewWarning, match="'wrist' is absent"):
        infos = [env.step(np.zeros(2, np.float32))[4] for _ in range(5)]
    assert infos[-1]["episode"]["absent"] == {"wrist": 5}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("deadline_s", [None, 5.0])
def test_an_interrupt_is_not_taken_for_a_failing_camera(error: type[BaseException], deadline_s: float | None) -> None:
    env = MultiView(Arm(), views={"v": Camera(make_flaky_camera([error()]), shape=(6, 8, 3), deadline_s=deadline_s)})
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


def test_at_least_one_view_is_required() -> None:
    with pytest.raises(ValueError, match="at least one view"):
        MultiView(Arm(), views={})


def make_arm() -> gym.Env[Observation, Any]:
    return MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"})


def test_a_custom_environment_is_made_by_its_path() -> None:
    env = make(f"{__name__}:make_arm", views=["wrist"], frame_stack=3)
    assert env.reset(seed=0)[0]["wrist"].shape == (5, 5, 3)


# Other sizes, channels and actions.


def test_images_of_different_sizes_are_resized_to_one_size() -> None:
    env = MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"}, image_size=4)
    assert [view.shape for view in get_views(env)] == [(4, 4, 3), (4, 4, 1)]
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    original = MultiView(Arm(), views={"front": "pixels/front", "wrist": "pixels/wrist"}).reset(seed=0)[0]
    assert np.array_equal(observation["front"], resize_image(original["front"], 4))
    assert np.array_equal(observation["wrist"], resize_image(original["wrist"], 4))


@pytest.mark.parametrize("aspect", ["crop", "pad", "stretch"])
def test_the_aspect_applies_to_views(aspect: Any) -> None:
    env = MultiView(Arm(), views={"v": lambda: GREEN}, image_size=4, aspect=aspect)
    assert np.array_equal(env.reset()[0]["v"], resize_image(GREEN, 4, aspect))


def test_the_size_of_the_camera_is_checked_before_it_is_resized() -> None:
    images = iter([GREEN, GREEN, GREEN[:4]])
    env = MultiView(Arm(), views={"v": lambda: next(images)}, image_size=4)
    env.reset()
    with pytest.raises(ContractError, match=r"view 'v': expected uint8 of shape \(6, 8, 3\), got .*\(4, 8, 3\)"):
        env.step(np.zeros(2, np.float32))


def test_a_camera_that_fails_is_black_in_the_size_of_the_images() -> None:
    env = MultiView(Arm(), views={"v": make_flaky_camera([GREEN, None]), "front": "pixels/front"}, image_size=4)
    with pytest.warns(ViewWarning, match="absent"):
        observation, _ = env.reset()
    assert observation["v"].shape == (4, 4, 3)
    assert not observation["v"].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"image_size": 0}, "invalid image_size"), ({"aspect": "fit"}, "invalid aspect: expected crop, pad, stretch")],
)
def test_an_invalid_size_or_aspect_is_refused_at_once(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiView(Arm(), views={"front": "pixels/front"}, **options)


@pytest.mark.parametrize("deadline_s", [None, 5.0])
def test_bgr_images_are_converted_to_rgb(deadline_s: float | None) -> None:
    bgr = GREEN.copy()
    bgr[..., 2] = 9  # a little red
    env = MultiView(Arm(), views={"v": Camera(lambda: bgr, channels="bgr", deadline_s=deadline_s)})
    assert env.reset()[0]["v"][3, 3].tolist() == [9, 255, 0]
    env.close()


def test_channels_first_images_are_transposed_on_request() -> None:
    image = np.zeros((3, 8, 9), np.uint8)
    image[0, 1, 2] = 50
    views: dict[str, ViewSource] = {
        "camera": Camera(lambda: image, channels_first=True),
        "torch": FromObservation("pixels/torch", channels_first=True, channels="bgr"),
    }
    env = MultiView(Arm(), views=views)
    assert [view.shape for view in get_views(env)] == [(8, 9, 3), (8, 9, 3)]
    assert env.reset()[0]["camera"][1, 2].tolist() == [50, 0, 0]


@pytest.mark.parametrize("source", [Camera, FromObservation])
def test_an_unknown_order_of_channels_is_refused(source: Any) -> None:
    with pytest.raises(ValueError, match="invalid channels: expected rgb or bgr, got 'rgba'"):
        source("pixels/front", channels="rgba")


class ArmInPhysicalUnits(Arm):
    """Arm with actions in degrees and newtons."""

    action_space = spaces.Box(np.array([-90, 0], np.float32), np.array([30, 4], np.float32))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return *super().step(action)[:4], {"action": action}


def test_actions_are_rescaled_on_request() -> None:
    env = wrap(MultiView(ArmInPhysicalUnits(), views={"front": "pixels/front"}, rescale_actions=True))
    assert env.action_space == spaces.Box(-1.0, 1.0, (2,), np.float32)
    env.reset(seed=0)
    for action, expected in (([-1, -1], [-90, 0]), ([1, 1], [30, 4]), ([0, 0.5], [-30, 3])):
        assert env.step(np.array(action, np.float32))[4]["action"].tolist() == expected
    original_env = MultiView(ArmInPhysicalUnits(), views={"front": "pixels/front"})
    assert original_env.action_space == ArmInPhysicalUnits.action_space


def test_rescaled_actions_keep_snapshots() -> None:
    env = wrap(MultiView(ArmInPhysicalUnits(), views={"front": "pixels/front"}, rescale_actions=True))
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


class ForegroundEnv(MultiViewEnv):
    """Environment with a camera and its foreground view."""

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
    env = wrap(ForegroundEnv(), image_size=3)
    observation, _ = env.reset()
    foreground = np.zeros((3, 3), np.bool_)
    foreground[0, 0] = True  # the crop takes columns 1 to 6
    assert np.array_equal(observation["side_foreground"], remove_background(observation["side"], foreground, (9, 9, 9)))


def test_an_invalid_image_is_refused_before_it_is_resized() -> None:
    class CroppedImageEnv(ForegroundEnv):
        def reset(self, **options: Any) -> tuple[Observation, Any]:
            observation, info = super().reset(**options)
            return {**observation, "side": observation["side"][:4]}, info

    with pytest.raises(ContractError, match=r"view 'side': expected uint8 of shape \(6, 8, 3\)"):
        wrap(CroppedImageEnv(), image_size=3).reset()


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


# Cameras with a deadline.


class SlowCamera:
    """Camera whose reads wait for `allow_images`; each image is filled with its number."""

    def __init__(self) -> None:
        self.number = 0
        self._permits = threading.Semaphore(0)

    def allow_images(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.release()

    def read(self) -> Image:
        assert self._permits.acquire(timeout=300)
        self.number += 1
        return np.full((4, 4, 1), self.number, np.uint8)


@pytest.fixture
def slow_camera() -> Iterator[SlowCamera]:
    camera = SlowCamera()
    yield camera
    camera.allow_images(1000)  # release threads that still wait


class ArmWithSlowCamera(Arm):
    """Arm whose steps wait for `images_per_step` of a slow camera and then for `step_s`.

    The read of the first of these images starts before the step.
    """

    def __init__(self, camera: SlowCamera) -> None:
        super().__init__()
        self._camera = camera
        self.images_per_step, self.step_s = 2, 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        target_number = self._camera.number + self.images_per_step
        self._camera.allow_images(self.images_per_step)
        while self._camera.number < target_number:
            time.sleep(0.001)
        time.sleep(self.step_s)
        return super().step(action)

    def close(self) -> None:
        super().close()
        self._camera.allow_images(1000)


def make_env_with_slow_camera(camera: SlowCamera, *, deadline_s: float) -> MultiView:
    views: dict[str, ViewSource] = {
        "slow": Camera(camera.read, deadline_s=deadline_s, shape=(4, 4, 1)),
        "front": "pixels/front",
    }
    return MultiView(ArmWithSlowCamera(camera), views=views)


def test_a_camera_with_a_deadline_shows_its_newest_image(slow_camera: SlowCamera) -> None:
    env = make_env_with_slow_camera(slow_camera, deadline_s=10.0)
    slow_camera.allow_images(2)
    assert env.reset(seed=0)[0]["slow"].max() == 2
    env.unwrapped.images_per_step = 3  # type: ignore[attr-defined]
    observation = env.step(np.zeros(2, np.float32))[0]
    assert observation[MASK].tolist() == [1, 1]
    assert observation["slow"].max() in (4, 5)  # the fifth image may not be available yet
    env.close()


def test_a_camera_that_misses_its_deadline_is_absent_and_the_step_continues(slow_camera: SlowCamera) -> None:
    env = make_env_with_slow_camera(slow_camera, deadline_s=0.3)
    slow_camera.allow_images(2)
    env.reset(seed=0)
    env.unwrapped.images_per_step = 0  # type: ignore[attr-defined]
    with pytest.warns(ViewWarning, match=r"view 'slow' is absent \(TimeoutError: no new image within 0.3 s\)"):
        observation, *_, info = env.step(np.zeros(2, np.float32))
    assert observation[MASK].tolist() == [0, 1]
    assert info["camera_failures"] == {"slow": "TimeoutError: no new image within 0.3 s"}
    env.close()


def test_an_image_from_before_the_step_is_not_new(slow_camera: SlowCamera) -> None:
    env = make_env_with_slow_camera(slow_camera, deadline_s=0.3)
    slow_camera.allow_images(2)
    env.reset(seed=0)
    slow_camera.allow_images()  # between two steps
    reader: Any = env._readers["slow"]
    while reader._latest_frame.newest.max() < 3:
        time.sleep(0.001)
    env.unwrapped.images_per_step = 0  # type: ignore[attr-defined]
    with pytest.warns(ViewWarning, match="no new image"):
        assert env.step(np.zeros(2, np.float32))[0][MASK].tolist() == [0, 1]
    env.close()


@pytest.mark.parametrize(("images_per_step", "step_s"), [(1, 0.0), (2, 0.6)])
def test_an_image_that_may_not_show_the_end_of_the_step_is_not_new(
    slow_camera: SlowCamera, images_per_step: int, step_s: float
) -> None:
    """Its read started before the step, or longer than the deadline before the end of the step."""
    env = make_env_with_slow_camera(slow_camera, deadline_s=0.3)
    slow_camera.allow_images(2)
    env.reset(seed=0)
    arm: Any = env.unwrapped
    arm.images_per_step, arm.step_s = images_per_step, step_s
    time.sleep(0.05)  # the next read has started
    with pytest.warns(ViewWarning, match="no new image"):
        assert env.step(np.zeros(2, np.float32))[0][MASK].tolist() == [0, 1]
    env.close()


def test_several_hanging_cameras_cost_a_single_deadline(slow_camera: SlowCamera) -> None:
    views: dict[str, Any] = {
        f"slow{number}": Camera(slow_camera.read, deadline_s=0.3, shape=(4, 4, 1)) for number in range(4)
    }
    env = MultiView(Arm(), views={**views, "front": "pixels/front"})
    start_s = time.monotonic()
    with pytest.warns(ViewWarning, match="absent"):
        env.reset(seed=0)
    assert 0.3 <= time.monotonic() - start_s < 0.9
    slow_camera.allow_images(1000)
    env.close()


def test_a_camera_that_raises_in_its_thread_is_absent_at_once() -> None:
    def read() -> Image:
        raise OSError("unplugged")

    env = MultiView(Arm(), views={"v": Camera(read, deadline_s=60.0, shape=(6, 8, 3)), "front": "pixels/front"})
    start_s = time.monotonic()
    with pytest.warns(ViewWarning, match=r"view 'v' is absent \(OSError: unplugged\)"):
        env.reset()
    assert time.monotonic() - start_s < 30
    env.close()


def test_the_shape_of_a_camera_with_a_deadline_is_that_of_its_first_image() -> None:
    def read() -> Image:
        time.sleep(0.01)
        return GREEN

    env = MultiView(Arm(), views={"v": Camera(read, deadline_s=1.0)})
    assert get_views(env)[0].shape == (6, 8, 3)
    env.close()


def test_closing_leaves_no_thread_behind(slow_camera: SlowCamera) -> None:
    num_threads = threading.active_count()
    env = make_env_with_slow_camera(slow_camera, deadline_s=0.3)
    slow_camera.allow_images(2)
    env.reset(seed=0)
    assert threading.active_count() == num_threads + 1
    env.close()
    assert threading.active_count() == num_threads
    env.close()


def test_an_environment_that_could_not_be_made_leaves_no_thread_behind() -> None:
    num_threads = threading.active_count()
    views: dict[str, ViewSource] = {"v": Camera(lambda: GREEN, deadline_s=1.0), "wrong": lambda: GREEN / 255}
    with pytest.raises(ContractError):
        MultiView(Arm(), views=views)
    assert threading.active_count() == num_threads


def test_garbage_collection_of_an_open_environment_ends_its_threads() -> None:
    num_threads = threading.active_count()
    env = MultiView(Arm(), views={"v": Camera(lambda: GREEN, deadline_s=1.0)})
    env_ref = weakref.ref(env)
    del env
    gc.collect()
    assert env_ref() is None
    end_s = time.monotonic() + 10
    while threading.active_count() > num_threads and time.monotonic() < end_s:
        time.sleep(0.01)
    assert threading.active_count() == num_threads


def test_a_deadline_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid deadline_s: expected a value above 0, or None, got 0"):
        Camera(lambda: GREEN, deadline_s=0)


# MuJoCo.

FRONT = Orbit("torso", distance=3.0, azimuth=180.0)


def make_hopper_env(**views: MujocoCamera) -> MultiView:
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
        return wrap(make_hopper_env(), frame_stack=3)


@pytest.mark.simulator
def test_cameras_by_name_number_and_orbit_show_their_views() -> None:
    env = make_hopper_env(
        named=MujocoCamera("track", size=40, quality="fast"),
        numbered=MujocoCamera(0, size=40, quality="fast"),
        front=MujocoCamera(FRONT, size=40, quality="fast"),
        top=MujocoCamera(Orbit("torso", distance=3.0, elevation=-90.0), size=40, quality="fast"),
    )
    first, _ = env.reset(seed=0)
    last = [env.step(env.action_space.sample())[0] for _ in range(5)][-1]
    env.close()
    assert np.array_equal(first["named"], first["numbered"])
    assert not np.array_equal(first["named"], first["front"])
    assert not np.array_equal(first["front"], first["top"])
    for name in ("named", "front", "top"):
        assert first[name].std() > 10, f"{name} is flat"
        assert not np.array_equal(first[name], last[name])


@pytest.mark.simulator
def test_an_orbit_camera_follows_its_body() -> None:
    env = make_hopper_env(front=MujocoCamera(FRONT, size=40, quality="fast"))
    env.reset(seed=0)
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    near_image = env.step(np.zeros(3, np.float32))[0]["front"]
    data.qpos[0] += 40.0
    far_image = env.step(np.zeros(3, np.float32))[0]["front"]
    env.close()
    # The floor and the sky are gray, the hopper is brown.
    brown_pixels = [(image[..., 0].astype(int) - image[..., 2] > 30).sum() for image in (near_image, far_image)]
    assert brown_pixels[0] > 20, "the hopper is not in sight"
    assert brown_pixels[1] == pytest.approx(brown_pixels[0], rel=0.2)


@pytest.mark.simulator
@pytest.mark.parametrize("quality", ["standard", "fast"])
def test_a_view_equals_the_image_of_mujocos_renderer(quality: Any) -> None:
    """This runs in a new process: a `mujoco.Renderer` here could change images of other tests."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_is_equal_to_mujoco_renderer, (quality,))


def _is_equal_to_mujoco_renderer(quality: Any) -> bool:
    from manyview.envs.rendering.gl import configure_headless_gl, set_render_quality

    configure_headless_gl()  # before mujoco is imported
    import mujoco

    env = make_hopper_env(
        side=MujocoCamera("track", size=(30, 40), quality=quality), big=MujocoCamera(0, size=64, quality=quality)
    )
    env.reset(seed=0)
    observation = [env.step(env.action_space.sample())[0] for _ in range(3)][-1]
    base_env: Any = env.unwrapped
    set_render_quality(base_env.model.vis, quality, 64)
    renderer = mujoco.Renderer(base_env.model, 30, 40)
    if quality == "fast":
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
    renderer.update_scene(base_env.data, "track")
    is_equal = np.array_equal(renderer.render(), observation["side"])
    renderer.close()
    env.close()
    return is_equal


@pytest.mark.simulator
def test_the_model_keeps_its_visual_settings() -> None:
    env = make_hopper_env()
    visual: Any = env.unwrapped.model.vis  # type: ignore[attr-defined]
    assert (visual.quality.offsamples, visual.quality.numslices) != (0, 12)
    assert min(visual.global_.offwidth, visual.global_.offheight) >= 480
    env.close()


@pytest.mark.simulator
def test_renderers_in_one_process_do_not_interfere() -> None:
    """Two MuJoCo environments and one of dm_control are rendered in turn, closed and collected."""
    pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')
    env, other_env = make_hopper_env(), make_hopper_env()
    dmc_env = make("dmc/cheetah_run", views=("side",), render_quality="fast")
    expected, _ = env.reset(seed=0)
    expected_dmc, _ = dmc_env.reset(seed=0)
    other_env.reset(seed=1)
    for clean_up in (lambda: None, other_env.close, gc.collect):
        clean_up()
        assert are_equal(env.reset(seed=0)[0], expected)
        assert are_equal(dmc_env.reset(seed=0)[0], expected_dmc)
    env.close()
    dmc_env.close()


@pytest.mark.simulator
def test_an_unknown_camera_or_body_names_the_available_ones() -> None:
    with pytest.raises(
        ValueError, match=r"view 'v': unknown camera: expected one of 0 'track', got 'back'. .* an Orbit"
    ):
        make_hopper_env(v=MujocoCamera("back"))
    with pytest.raises(ValueError, match="view 'v': unknown camera: expected one of 0 'track', got 1"):
        make_hopper_env(v=MujocoCamera(1))
    with pytest.raises(
        ValueError, match=r"view 'v': unknown body .* expected one of 0 'world', 1 'torso', .*, got 'head'"
    ):
        make_hopper_env(v=MujocoCamera(Orbit("head", distance=1.0)))


def test_a_mujoco_camera_of_an_environment_without_mujoco_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"has no MuJoCo `model` and `data`\. For other simulators give a render function"
    ):
        MultiView(Arm(), views={"v": MujocoCamera("track")})
    with pytest.raises(TypeError, match="has no MuJoCo"):
        MultiView(HiddenGoal(), views={"v": MujocoCamera("track")})
