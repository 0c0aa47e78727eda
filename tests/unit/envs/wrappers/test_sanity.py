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

Draw = Callable[[int, int], dict[str, Image | None]]  # by episode and step

RNG = np.random.default_rng(0)
SCENES = {name: RNG.integers(256, size=(24, 24, 3), dtype=np.uint8) for name in ("side", "back", "top")}


def noisy(name: str, *, levels: int = 8) -> Image:
    """The scene of a view with something of its own in every picture."""
    change = RNG.integers(-levels, levels + 1, size=(24, 24, 3))
    return np.clip(SCENES[name].astype(int) + change, 0, 255).astype(np.uint8)


class Drawn(MultiViewEnv):
    """Shows what it is told to. Episodes end after `episode_steps`."""

    def __init__(self, draw: Draw, views: tuple[View, ...], *, episode_steps: int) -> None:
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
        shown = self.observe(self._draw(self._episode, self._step))
        return shown, 0.0, False, self._step >= self._episode_steps, {}


SIDE, BACK, TOP = (View(name, 24, 24) for name in SCENES)
FOREGROUND = View("side_foreground", 24, 24, derived_from="side")


def said(
    draw: Draw, *, views: tuple[View, ...] = (SIDE, BACK), episodes: int = 1, episode_steps: int = 200
) -> list[tuple[int, int, str]]:
    """Every warning with the episode and step in which it came."""
    env = SanityCheck(Drawn(draw, views, episode_steps=episode_steps), name="robot")
    heard: list[tuple[int, int, str]] = []

    def hear(call: Callable[[], Any], episode: int, step: int) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call()
        heard.extend((episode, step, str(warning.message)) for warning in caught if warning.category is ViewWarning)
        assert all(warning.category is ViewWarning for warning in caught)
        return result

    for episode in range(1, episodes + 1):
        hear(env.reset, episode, 0)
        for step in range(1, episode_steps + 1):
            hear(lambda: env.step(0), episode, step)
    return heard


def test_views_that_are_well_are_left_in_peace() -> None:
    assert said(lambda *_: {"side": noisy("side"), "back": noisy("back")}, episodes=5) == []


def test_a_camera_that_is_black_from_the_start_is_named_at_once() -> None:
    heard = said(lambda *_: {"side": np.zeros((24, 24, 3), np.uint8), "back": noisy("back")}, episodes=3)
    remedy = "Check the lens cap, cable and light, or remove the view."
    assert heard == [(1, 0, f"robot: view 'side' is black, since the reset of episode 1. {remedy}")]


def test_a_covered_camera_is_black_in_spite_of_its_noise() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {"side": RNG.integers(4, size=(24, 24, 3), dtype=np.uint8), "back": noisy("back")}

    assert len(said(draw)) == 1


def test_a_view_of_one_colour_is_named_with_the_colour_and_since_when() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:
        blue = np.full((24, 24, 3), (0, 0, 255), np.uint8)
        return {"side": blue if (episode, step) >= (2, 33) else noisy("side"), "back": noisy("back")}

    (episode, step, text), *others = said(draw, episodes=3)
    assert not others
    assert (episode, step) == (2, 40 + WARN_AFTER_STEPS)
    assert text.startswith("robot: view 'side' shows only the color (0, 0, 255), since step 40 of episode 2")


def test_a_dark_moment_is_not_worth_a_word() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {"side": np.zeros((24, 24, 3), np.uint8) if 50 <= step < 60 else noisy("side"), "back": noisy("back")}

    assert said(draw) == []


def test_something_small_on_a_plain_ground_is_not_one_colour() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        picture = np.zeros((24, 24, 3), np.uint8)
        picture[5:7, 9] = 255
        return {"side": picture, "back": noisy("back")}

    assert [text for _, _, text in said(draw, episode_steps=FROZEN_AFTER_STEPS - 5)] == []


def test_a_view_that_goes_black_again_is_named_again() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {"side": np.zeros((24, 24, 3), np.uint8) if step // 50 % 2 else noisy("side"), "back": noisy("back")}

    assert len(said(draw)) == 2


def test_two_views_of_one_camera_are_named_at_once() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        picture = noisy("side")
        return {"side": picture, "back": noisy("back"), "top": picture.copy()}

    ((episode, step, text),) = said(draw, views=(SIDE, BACK, TOP), episodes=2)
    assert (episode, step) == (1, 0)
    assert text.startswith("robot: views 'side' and 'top' show the same image, since the reset of episode 1. ")


def test_views_that_meet_for_a_moment_are_not_the_same() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        picture = noisy("side")
        return {"side": picture, "back": picture.copy() if step == 100 else noisy("back")}

    assert said(draw) == []


def test_a_frozen_view_is_named_once_the_others_have_moved_for_long() -> None:
    still = noisy("side")

    def draw(episode: int, step: int) -> dict[str, Image | None]:
        return {"side": still if (episode, step) >= (2, 20) else noisy("side"), "back": noisy("back")}

    ((episode, step, text),) = said(draw, episodes=3)  # not in every episode again
    assert (episode, step) == (2, 20 + FROZEN_AFTER_STEPS)
    assert text.startswith("robot: view 'side' has not changed while 'back' did, since step 20 of episode 2. ")


def test_when_everything_stands_still_nothing_is_frozen() -> None:
    still = {name: noisy(name) for name in ("side", "back")}
    assert said(lambda *_: dict(still)) == []


def test_a_single_gray_level_of_another_view_is_no_motion() -> None:
    """The ball lies in the cup, and the policy holds it nearly still."""

    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        flickering = SCENES["back"].copy()
        flickering[3, 4, 0] = 100 + step // CHECK_INTERVAL_STEPS % 2
        return {"side": SCENES["side"], "back": flickering}

    assert said(draw) == []


def test_a_view_may_stand_still_for_a_while() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {"side": SCENES["side"] if step % 45 else noisy("side"), "back": noisy("back")}

    assert said(draw, episodes=3) == []


def test_a_view_that_comes_back_to_the_same_picture_is_not_frozen() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        return {"side": SCENES["side"] if step % 10 == 0 else noisy("side"), "back": noisy("back")}

    assert said(draw, episodes=3) == []


def test_short_episodes_that_begin_alike_are_not_frozen() -> None:
    assert said(lambda *_: {"side": SCENES["side"], "back": noisy("back")}, episodes=40, episode_steps=10) == []


def test_an_absent_camera_is_neither_black_nor_frozen() -> None:
    assert said(lambda *_: {"side": None, "back": noisy("back")}, episodes=2) == []


def test_a_derived_view_may_be_empty_and_stand_still() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {"side": noisy("side"), "side_foreground": np.zeros((24, 24, 3), np.uint8), "back": noisy("back")}

    assert said(draw, views=(SIDE, FOREGROUND, BACK), episodes=2) == []


def test_a_derived_view_may_equal_its_camera() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        picture = noisy("side")
        return {"side": picture, "side_foreground": picture, "back": noisy("back")}

    assert said(draw, views=(SIDE, FOREGROUND, BACK), episodes=2) == []


@pytest.mark.parametrize("swapped_from", [2, 5, 20])
def test_swapped_views_are_named_at_the_reset_that_swapped_them(swapped_from: int) -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        one, other = ("back", "side") if episode >= swapped_from else ("side", "back")
        return {"side": noisy(one), "back": noisy(other)}

    pairs = "'side' like 'back', 'back' like 'side'"
    ((episode, step, text),) = said(draw, episodes=30, episode_steps=3)
    assert (episode, step) == (swapped_from, 0)
    assert text.startswith(
        f"robot: views look swapped: {pairs} at earlier resets, since the reset of episode {episode}"
    )


def test_three_views_that_moved_round_are_named() -> None:
    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        names = ("back", "top", "side") if episode >= 3 else ("side", "back", "top")
        return dict(zip(("side", "back", "top"), map(noisy, names), strict=True))

    ((_, _, text),) = said(draw, views=(SIDE, BACK, TOP), episodes=6, episode_steps=3)
    assert "'side' like 'back', 'back' like 'top', 'top' like 'side'" in text


def test_scenes_drawn_anew_at_every_reset_are_not_swapped() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {name: RNG.integers(256, size=(24, 24, 3), dtype=np.uint8) for name in ("side", "back")}

    assert said(draw, episodes=300, episode_steps=1) == []


def test_two_cameras_at_nearly_the_same_place_are_not_swapped() -> None:
    def draw(*_: int) -> dict[str, Image | None]:
        return {"side": noisy("side", levels=20), "back": noisy("side", levels=20)}

    assert said(draw, episodes=100, episode_steps=1) == []


@pytest.mark.parametrize("task", [task for task in list_tasks() if task.startswith("toy/")])
def test_no_toy_gives_a_false_alarm(task: str) -> None:
    env = make(task)
    env.action_space.seed(0)
    for _ in range(100):  # the tests make an error of every warning
        env.reset()
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(view="side", kind="black", lasts="episode", at_step=3), "'side' is black"),
        (Fault(view="side", kind="frozen", lasts="episode", at_step=3), "'side' has not changed"),
    ],
)
def test_faults_are_noticed_through_the_whole_of_what_wrap_puts_around(fault: Fault, says: str) -> None:
    bare = Drawn(lambda *_: {"side": noisy("side"), "back": noisy("back")}, (SIDE, BACK), episode_steps=200)
    env = wrap(bare, faults=[fault], frame_stack=3)
    env.reset(seed=0)
    with pytest.warns(ViewWarning, match=says):
        _ = [env.step(0) for _ in range(200)]


@pytest.mark.timing
def test_looking_costs_less_than_a_hundredth_of_a_step_of_3_ms(slack: float) -> None:
    """Three cameras of 84 x 84, in the two ways their memory can lie."""
    views = tuple(View(name, 84, 84) for name in ("side", "back", "top"))
    frames = {view.name: RNG.integers(256, size=(100, 84, 84, 3), dtype=np.uint8) for view in views}

    def draw(episode: int, step: int) -> dict[str, Image | None]:  # noqa: ARG001
        drawn = {name: pictures[step % 100] for name, pictures in frames.items()}
        return {**drawn, "back": drawn["back"][::-1]}  # as OpenGL leaves it

    def seconds(env: gym.Env[Observation, Any]) -> float:
        env.reset(seed=0)
        began = time.perf_counter()
        for _ in range(1000):
            env.step(0)
        return time.perf_counter() - began

    bare = Drawn(draw, views, episode_steps=10**9)
    watched = SanityCheck(Drawn(draw, views, episode_steps=10**9))
    pairs = [(seconds(bare), seconds(watched)) for _ in range(7)]
    cost_s = (min(pair[1] for pair in pairs) - min(pair[0] for pair in pairs)) / 1000
    assert cost_s < 0.01 * 0.003 * slack, f"{1e6 * cost_s:.1f} µs a step"
