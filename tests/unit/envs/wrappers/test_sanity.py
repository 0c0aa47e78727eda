"""Warnings about black, flat, duplicate, frozen and swapped views."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from manyview.envs import Fault, MultiViewEnv, SanityCheck, View, ViewWarning, list_tasks, make, wrap
from manyview.envs.views import Image, Observation
from manyview.envs.wrappers.sanity import CHECK_INTERVAL_STEPS, FROZEN_AFTER_STEPS, WARN_AFTER_STEPS

DrawImages = Callable[[int, int], dict[str, Image | None]]  # by episode and step

RNG = np.random.default_rng(0)
SCENES = {name: RNG.integers(256, size=(24, 24, 3), dtype=np.uint8) for name in ("side", "back", "top")}


def add_noise(name: str, *, levels: int = 8) -> Image:
    """Return the scene of a view with new noise."""
    noise = RNG.integers(-levels, levels + 1, size=(24, 24, 3))
    return np.clip(SCENES[name].astype(int) + noise, 0, 255).astype(np.uint8)


class ScriptedEnv(MultiViewEnv):
    """Environment that shows the images of `draw`; episodes end after `episode_steps`."""

    def __init__(self, draw: DrawImages, views: tuple[View, ...], *, episode_steps: int) -> None:
        super().__init__(views, spaces.Discrete(2))
        self._draw, self._episode_steps = draw, episode_steps
        self._episode = self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        return self.observe(self._draw(self._episode, 0)), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._step += 1
        observation = self.observe(self._draw(self._episode, self._step))
        return observation, 0.0, False, self._step >= self._episode_steps, {}


SIDE, BACK, TOP = (View(name, 24, 24) for name in SCENES)
FOREGROUND = View("side_foreground", 24, 24, derived_from="side")


def collect_warnings(
    draw: DrawImages, *, views: tuple[View, ...] = (SIDE, BACK), episodes: int = 1, episode_steps: int = 200
) -> list[tuple[int, int, str]]:
    """Return the episode, the step and the text of every warning."""
    env = SanityCheck(ScriptedEnv(draw, views, episode_steps=episode_steps), name="robot")
    records: list[tuple[int, int, str]] = []

    def call_and_record(call: Callable[[], Any], episode: int, step: int) -> Any:
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            result = call()
        records.extend(
            (episode, step, str(warning.message)) for warning in caught_warnings if warning.category is ViewWarning
        )
        assert all(warning.category is ViewWarning for warning in caught_warnings)
        return result

    for episode in range(1, episodes + 1):
        call_and_record(env.reset, episode, 0)
        for step in range(1, episode_steps + 1):
            call_and_record(lambda: env.step(0), episode, step)
    return records


def test_healthy_views_give_no_warning() -> None:
    assert collect_warnings(lambda *_: {"side": add_noise("side"), "back": add_noise("back")}, episodes=5) == []


def test_a_camera_that_is_black_from_the_start_is_named_at_once() -> None:
    records = collect_warnings(
        lambda *_: {"side": np.zeros((24, 24, 3), np.uint8), "back": add_noise("back")}, episodes=3
    )
    remedy = "Check the lens cap, cable and light, or remove the view."
    assert records == [(1, 0, f"robot: view 'side' is black, since the reset of episode 1. {remedy}")]


def test_a_covered_camera_is_black_in_spite_of_its_noise() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {"side": RNG.integers(4, size=(24, 24, 3), dtype=np.uint8), "back": add_noise("back")}

    assert len(collect_warnings(draw)) == 1


def test_a_view_of_a_single_color_is_named_with_the_color_and_its_start() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:
        blue = np.full((24, 24, 3), (0, 0, 255), np.uint8)
        return {"side": blue if (episode, step) >= (2, 33) else add_noise("side"), "back": add_noise("back")}

    (episode, step, text), *others = collect_warnings(draw, episodes=3)
    assert not others
    assert (episode, step) == (2, 40 + WARN_AFTER_STEPS)
    assert text.startswith("robot: view 'side' shows only the color (0, 0, 255), since step 40 of episode 2")


def test_a_short_dark_period_gives_no_warning() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {
            "side": np.zeros((24, 24, 3), np.uint8) if 50 <= step < 60 else add_noise("side"),
            "back": add_noise("back"),
        }

    assert collect_warnings(draw) == []


def test_a_small_object_on_a_plain_background_is_not_a_single_color() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        image = np.zeros((24, 24, 3), np.uint8)
        image[5:7, 9] = 255
        return {"side": image, "back": add_noise("back")}

    assert [text for _, _, text in collect_warnings(draw, episode_steps=FROZEN_AFTER_STEPS - 5)] == []


def test_a_view_that_goes_black_again_is_named_again() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {
            "side": np.zeros((24, 24, 3), np.uint8) if step // 50 % 2 else add_noise("side"),
            "back": add_noise("back"),
        }

    assert len(collect_warnings(draw)) == 2


def test_two_views_of_one_camera_are_named_at_once() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        image = add_noise("side")
        return {"side": image, "back": add_noise("back"), "top": image.copy()}

    ((episode, step, text),) = collect_warnings(draw, views=(SIDE, BACK, TOP), episodes=2)
    assert (episode, step) == (1, 0)
    assert text.startswith("robot: views 'side' and 'top' show the same image, since the reset of episode 1. ")


def test_views_that_are_equal_for_one_step_give_no_warning() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        image = add_noise("side")
        return {"side": image, "back": image.copy() if step == 100 else add_noise("back")}

    assert collect_warnings(draw) == []


def test_a_frozen_view_is_named_after_the_other_moved_for_long() -> None:
    frozen_image = add_noise("side")

    def draw(episode: int, step: int) -> dict[str, Image | None]:
        return {"side": frozen_image if (episode, step) >= (2, 20) else add_noise("side"), "back": add_noise("back")}

    ((episode, step, text),) = collect_warnings(draw, episodes=3)  # not repeated in every episode
    assert (episode, step) == (2, 20 + FROZEN_AFTER_STEPS)
    assert text.startswith("robot: view 'side' has not changed while 'back' did, since step 20 of episode 2. ")


def test_no_view_of_a_static_scene_is_frozen() -> None:
    images = {name: add_noise(name) for name in ("side", "back")}
    assert collect_warnings(lambda *_: dict(images)) == []


def test_a_single_gray_level_of_another_view_is_no_motion() -> None:
    """Such images occur when the ball lies in the cup and hardly moves."""

    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        flickering_image = SCENES["back"].copy()
        flickering_image[3, 4, 0] = 100 + step // CHECK_INTERVAL_STEPS % 2
        return {"side": SCENES["side"], "back": flickering_image}

    assert collect_warnings(draw) == []


def test_a_view_may_be_constant_for_a_while() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {"side": SCENES["side"] if step % 45 else add_noise("side"), "back": add_noise("back")}

    assert collect_warnings(draw, episodes=3) == []


def test_a_view_that_returns_to_the_same_image_is_not_frozen() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {"side": SCENES["side"] if step % 10 == 0 else add_noise("side"), "back": add_noise("back")}

    assert collect_warnings(draw, episodes=3) == []


def test_short_episodes_with_equal_images_are_not_frozen() -> None:
    assert (
        collect_warnings(lambda *_: {"side": SCENES["side"], "back": add_noise("back")}, episodes=40, episode_steps=10)
        == []
    )


def test_an_absent_camera_is_neither_black_nor_frozen() -> None:
    assert collect_warnings(lambda *_: {"side": None, "back": add_noise("back")}, episodes=2) == []


def test_a_derived_view_may_be_empty_and_constant() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {
            "side": add_noise("side"),
            "side_foreground": np.zeros((24, 24, 3), np.uint8),
            "back": add_noise("back"),
        }

    assert collect_warnings(draw, views=(SIDE, FOREGROUND, BACK), episodes=2) == []


def test_a_derived_view_may_equal_its_camera() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        image = add_noise("side")
        return {"side": image, "side_foreground": image, "back": add_noise("back")}

    assert collect_warnings(draw, views=(SIDE, FOREGROUND, BACK), episodes=2) == []


@pytest.mark.parametrize("swap_episode", [2, 5, 20])
def test_swapped_views_are_named_at_the_reset_that_swapped_them(swap_episode: int) -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        side_scene, back_scene = ("back", "side") if episode >= swap_episode else ("side", "back")
        return {"side": add_noise(side_scene), "back": add_noise(back_scene)}

    pairs = "'side' like 'back', 'back' like 'side'"
    ((episode, step, text),) = collect_warnings(draw, episodes=30, episode_steps=3)
    assert (episode, step) == (swap_episode, 0)
    assert text.startswith(
        f"robot: views look swapped: {pairs} at earlier resets, since the reset of episode {episode}"
    )


def test_three_cyclically_swapped_views_are_named() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        names = ("back", "top", "side") if episode >= 3 else ("side", "back", "top")
        return dict(zip(("side", "back", "top"), map(add_noise, names), strict=True))

    ((_, _, text),) = collect_warnings(draw, views=(SIDE, BACK, TOP), episodes=6, episode_steps=3)
    assert "'side' like 'back', 'back' like 'top', 'top' like 'side'" in text


def test_new_scenes_at_every_reset_are_not_swapped() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {name: RNG.integers(256, size=(24, 24, 3), dtype=np.uint8) for name in ("side", "back")}

    assert collect_warnings(draw, episodes=300, episode_steps=1) == []


def test_two_cameras_at_nearly_the_same_place_are_not_swapped() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {"side": add_noise("side", levels=20), "back": add_noise("side", levels=20)}

    assert collect_warnings(draw, episodes=100, episode_steps=1) == []


@pytest.mark.parametrize("task", [task for task in list_tasks() if task.startswith("toy/")])
def test_toy_tasks_give_no_warning(task: str) -> None:
    env = make(task)
    env.action_space.seed(0)
    for _ in range(100):  # pytest turns every warning into an error
        env.reset()
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(view="side", kind="black", lasts="episode", at_step=3), "'side' is black"),
        (Fault(view="side", kind="frozen", lasts="episode", at_step=3), "'side' has not changed"),
    ],
)
def test_faults_are_detected_through_all_wrappers(fault: Fault, message: str) -> None:
    base_env = ScriptedEnv(
        lambda *_: {"side": add_noise("side"), "back": add_noise("back")}, (SIDE, BACK), episode_steps=200
    )
    env = wrap(base_env, faults=[fault], frame_stack=3)
    env.reset(seed=0)
    with pytest.warns(ViewWarning, match=message):
        _ = [env.step(0) for _ in range(200)]


@pytest.mark.timing
def test_the_check_costs_less_than_1_percent_of_a_3_ms_step(slack: float) -> None:
    """Three cameras of 84 x 84, one of them with its rows reversed in memory."""
    views = tuple(View(name, 84, 84) for name in ("side", "back", "top"))
    frames = {view.name: RNG.integers(256, size=(100, 84, 84, 3), dtype=np.uint8) for view in views}

    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        images = {name: view_frames[step % 100] for name, view_frames in frames.items()}
        return {**images, "back": images["back"][::-1]}  # as OpenGL returns it

    def measure_seconds(env: gym.Env[Observation, Any]) -> float:
        env.reset(seed=0)
        start_s = time.perf_counter()
        for _ in range(1000):
            env.step(0)
        return time.perf_counter() - start_s

    base_env = ScriptedEnv(draw, views, episode_steps=10**9)
    checked_env = SanityCheck(ScriptedEnv(draw, views, episode_steps=10**9))
    durations_s = [(measure_seconds(base_env), measure_seconds(checked_env)) for _ in range(7)]
    cost_s = (min(durations[1] for durations in durations_s) - min(durations[0] for durations in durations_s)) / 1000
    assert cost_s < 0.01 * 0.003 * slack, f"{1e6 * cost_s:.1f} µs a step"
