"""Fault injection: each kind and duration, derived views, the bonus, snapshots and validation."""

from collections.abc import Sequence
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from manyview.envs import (
    MASK,
    Fault,
    FaultInjector,
    MultiViewEnv,
    View,
    make,
    make_vector,
    restore,
    snapshot,
    wrap,
)
from manyview.envs.foreground import extract_foreground_mask, remove_background
from manyview.envs.testing import EnvironmentContract, are_equal
from manyview.envs.toy import HiddenGoal
from manyview.envs.views import Image, Observation, State
from manyview.envs.wrappers.faults import FaultDuration, FaultKind
from manyview.mem import MEM, Features, MEMConfig
from manyview.mem.reward import compute_distances
from manyview.utils.seeding import get_rng_state, restore_rng

# Injected faults also give warnings, which tests/unit/envs/wrappers/test_sanity.py covers.
pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
DURATIONS: tuple[FaultDuration, ...] = get_args(FaultDuration)
FILL = (9, 9, 9)


class RandomImageEnv(MultiViewEnv):
    """Environment with two cameras of random images and the foreground of the first."""

    episode_steps = 8

    def __init__(self) -> None:
        views = (View("side", 6, 7), View("side_foreground", 6, 7, derived_from="side", fill=FILL), View("back", 4, 4))
        super().__init__(views, spaces.Discrete(2))
        self._step = 0
        self._images: dict[str, Image | None] = {}
        self.is_side_absent = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._step += 1
        return self._observe(), float(self.np_random.random()), False, self._step >= self.episode_steps, {}

    def _observe(self) -> Observation:
        side, back = (self.np_random.integers(256, size=shape, dtype=np.uint8) for shape in ((6, 7, 3), (4, 4, 3)))
        foreground = self.np_random.random((6, 7)) < 0.5
        self._images = {"side": side, "side_foreground": remove_background(side, foreground, FILL), "back": back}
        if self.is_side_absent:
            self._images["side"] = self._images["side_foreground"] = None
        return self.observe(self._images)

    def snapshot(self) -> State:
        return {"step": self._step, "rng": get_rng_state(self.np_random), "images": dict(self._images)}

    def restore(self, state: State) -> Observation:
        self._step, self._images = state["step"], dict(state["images"])
        self.np_random = restore_rng(state["rng"])
        return self.observe(self._images)


ALL_FAULTS = [
    *(Fault(view="side", kind=kind, probability=0.1) for kind in KINDS),
    *(Fault(view="back", kind=kind, lasts=lasts, probability=0.02) for kind in KINDS for lasts in DURATIONS),
]


class TestRandomImagesWithFaultsContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return wrap(RandomImageEnv(), faults=ALL_FAULTS, frame_stack=2)


class TestToyWithFaultsContract(EnvironmentContract):
    def make_env(self) -> gym.Env[Observation, Any]:
        faults = [Fault(view="row", kind=kind, lasts="episode", probability=0.02) for kind in KINDS]
        return make("toy/hidden_goal_continuous", faults=faults, frame_stack=3)


def collect_episodes(
    env: gym.Env[Observation, Any], num_episodes: int, *, seed: int = 0
) -> list[list[tuple[Observation, dict[str, Any]]]]:
    """Return every observation with its info, by episode."""
    env.action_space.seed(seed)
    episodes = []
    for index in range(num_episodes):
        steps = [env.reset(seed=seed if index == 0 else None)]
        done = False
        while not done:
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            steps.append((observation, info))
            done = terminated or truncated
        episodes.append(steps)
    return episodes


def collect_faulty_episodes(*faults: Fault, num_episodes: int = 1) -> list[list[tuple[Observation, dict[str, Any]]]]:
    return collect_episodes(FaultInjector(RandomImageEnv(), faults), num_episodes)


def get_images(episode: list[tuple[Observation, dict[str, Any]]], view: str) -> list[Image]:
    return [observation[view] for observation, _ in episode]


def is_active(lasts: FaultDuration, *, episode: int, step: int, start_step: int) -> bool:
    match lasts:
        case "frame":
            return step == start_step
        case "episode":
            return step >= start_step
        case "forever":
            return episode > 0 or step >= start_step


START_STEP = 4
NUM_EPISODES = 3


def encode_observations(mem: MEM, observations: Sequence[Observation]) -> Features:
    def stack_view(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([observation[name].transpose(2, 0, 1) for observation in observations]))

    views = torch.stack([stack_view(name) for name in mem.view_names], dim=1)
    mask = torch.from_numpy(np.stack([observation[MASK] for observation in observations])).bool()
    return mem.encode(views, mask)


@pytest.mark.quality("S4")
@pytest.mark.parametrize("lasts", DURATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_with_any_fault_the_bonus_is_finite_and_the_mask_correct(kind: FaultKind, lasts: FaultDuration) -> None:
    fault = Fault(view="row", kind=kind, lasts=lasts, at_step=START_STEP)
    env = wrap(HiddenGoal(cells=10, episode_steps=12), faults=[fault])
    episodes = collect_episodes(env, NUM_EPISODES)
    for episode_index, episode in enumerate(episodes):
        for step, (observation, info) in enumerate(episode):
            active = is_active(lasts, episode=episode_index, step=step, start_step=START_STEP)
            assert info.get("faults", {}) == ({"row": kind} if active else {})
            assert observation[MASK].tolist() == [1, int(not (active and kind == "gone"))]
        absent_infos = [info for _, info in episode if info.get("faults") == {"row": "gone"}]
        assert episode[-1][1]["episode"].get("absent", {}) == ({"row": len(absent_infos)} if absent_infos else {})
    mem = MEM(("column", "row"), (1, 20, 20), MEMConfig(latent_dim=16, bank=0))
    features = encode_observations(mem, [observation for episode in episodes for observation, _ in episode])
    for _ in range(3):  # the running scales are updated too
        assert mem.compute_reward(features).isfinite().all()
    present_fraction = np.mean([observation[MASK][1] for episode in episodes for observation, _ in episode])
    assert mem.diagnose(features, beta=1.0).to_metrics()["present/row"] == pytest.approx(present_fraction)


def collect_frozen_observations(lasts: FaultDuration) -> list[list[Observation]]:
    """Return groups of observations in which the frozen camera repeats an image."""
    fault = Fault(view="row", kind="frozen", lasts=lasts, at_step=START_STEP)
    env = wrap(HiddenGoal(cells=10, episode_steps=12), faults=[fault])
    observations = [[observation for observation, _ in episode] for episode in collect_episodes(env, NUM_EPISODES)]
    first_step = START_STEP - 1  # its image is repeated
    match lasts:
        case "frame":
            return [episode[first_step : START_STEP + 1] for episode in observations]
        case "episode":
            return [episode[first_step:] for episode in observations]
        case "forever":
            return [[observation for episode in observations for observation in episode][first_step:]]


@pytest.mark.quality("S4")
@pytest.mark.parametrize("lasts", DURATIONS)
def test_a_frozen_view_has_a_bonus_of_exactly_zero(lasts: FaultDuration) -> None:
    mem = MEM(("column", "row"), (1, 20, 20), MEMConfig(latent_dim=16, bank=0))
    groups = collect_frozen_observations(lasts)
    other_distance = 0.0
    for observations in groups:
        distances, present = compute_distances(encode_observations(mem, observations), k=mem.config.k)
        assert present.all()
        assert distances[:, 1].eq(0.0).all()
        other_distance += float(distances[:, 0].sum())
    assert other_distance > 0, "the other camera moves, and pays"


def test_a_black_camera_is_black_and_a_noisy_one_is_noise() -> None:
    (episode,) = collect_faulty_episodes(
        Fault(view="side", kind="black", at_step=2, lasts="episode"),
        Fault(view="back", kind="noise", at_step=0, lasts="episode"),
    )
    (healthy_episode,) = collect_faulty_episodes()
    side, back = get_images(episode, "side"), get_images(episode, "back")
    assert [bool(image.any()) for image in side] == [True, True] + [False] * 7
    assert len({image.tobytes() for image in back}) == len(back)
    assert not any(
        np.array_equal(noise_image, healthy_image)
        for noise_image, healthy_image in zip(back, get_images(healthy_episode, "back"), strict=True)
    )


def test_a_frozen_camera_repeats_its_last_image() -> None:
    (healthy_episode,), (episode,) = (
        collect_faulty_episodes(),
        collect_faulty_episodes(Fault(view="side", kind="frozen", at_step=3, lasts="episode")),
    )
    for name in ("side", "side_foreground"):
        healthy_images, images = get_images(healthy_episode, name), get_images(episode, name)
        assert all(np.array_equal(healthy_images[min(step, 2)], images[step]) for step in range(len(images)))
    assert all(map(np.array_equal, get_images(healthy_episode, "back"), get_images(episode, "back")))


@pytest.mark.parametrize(("lasts", "num_images"), [("forever", 2), ("episode", 4)])
def test_only_a_camera_frozen_forever_stays_frozen_after_a_reset(lasts: FaultDuration, num_images: int) -> None:
    episodes = collect_faulty_episodes(Fault(view="side", kind="frozen", at_step=2, lasts=lasts), num_episodes=2)
    distinct_images = {image.tobytes() for episode in episodes for image in get_images(episode, "side")}
    assert len(distinct_images) == num_images  # the two images until it freezes, once or in each episode


@pytest.mark.parametrize("late_frames", [1, 3, 20])
def test_a_late_camera_shows_the_image_of_late_frames_ago(late_frames: int) -> None:
    (healthy_episode,), (episode,) = (
        collect_faulty_episodes(),
        collect_faulty_episodes(Fault(view="side", kind="late", at_step=0, lasts="episode", late_frames=late_frames)),
    )
    for name in ("side", "side_foreground"):
        healthy_images, images = get_images(healthy_episode, name), get_images(episode, name)
        assert all(
            np.array_equal(healthy_images[max(0, step - late_frames)], images[step]) for step in range(len(images))
        )


def test_the_derived_view_of_an_absent_camera_is_absent() -> None:
    (episode,) = collect_faulty_episodes(Fault(view="side", kind="gone", at_step=4))
    masks = [observation[MASK].tolist() for observation, _ in episode]
    assert masks == [[1, 1, 1]] * 4 + [[0, 0, 1]] + [[1, 1, 1]] * 4
    assert not episode[4][0]["side"].any()
    assert not episode[4][0]["side_foreground"].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_derived_view_always_matches_its_camera_image(kind: FaultKind) -> None:
    faults = [Fault(view="side", kind=kind, lasts="episode", probability=0.3)]
    for episode in collect_faulty_episodes(*faults, num_episodes=5):
        for observation, _ in episode:
            if observation[MASK][0]:
                foreground_image = observation["side_foreground"]
                mask = extract_foreground_mask(foreground_image, FILL)
                assert np.array_equal(foreground_image, remove_background(observation["side"], mask, FILL))


def test_the_noise_of_a_camera_appears_in_the_foreground_of_its_derived_view() -> None:
    (healthy_episode,), (episode,) = (
        collect_faulty_episodes(),
        collect_faulty_episodes(Fault(view="side", kind="noise", at_step=0, lasts="episode")),
    )
    for (healthy_observation, _), (observation, _) in zip(healthy_episode, episode, strict=True):
        mask = extract_foreground_mask(healthy_observation["side_foreground"], FILL)
        assert np.array_equal(observation["side_foreground"], remove_background(observation["side"], mask, FILL))
        assert not np.array_equal(observation["side_foreground"], healthy_observation["side_foreground"])


def test_a_camera_that_is_absent_without_a_fault_stays_absent() -> None:
    base_env = RandomImageEnv()
    env = FaultInjector(base_env, [Fault(view="side", kind=kind, probability=0.5) for kind in KINDS])
    env.reset(seed=0)
    base_env.is_side_absent = True
    for _ in range(50):
        observation = env.step(0)[0]
        assert observation[MASK].tolist() == [0, 0, 1]
        assert not observation["side"].any()


def test_faults_change_only_observations() -> None:
    def collect_outcomes(env: gym.Env[Observation, Any]) -> list[Any]:
        env.reset(seed=3)
        return [env.step(0)[1:4] for _ in range(RandomImageEnv.episode_steps)]

    assert collect_outcomes(FaultInjector(RandomImageEnv(), ALL_FAULTS)) == collect_outcomes(RandomImageEnv())


def test_the_first_declared_of_two_faults_is_applied() -> None:
    black, gone = (Fault(view="back", kind=kind, at_step=1) for kind in ("black", "gone"))
    assert collect_faulty_episodes(black, gone)[0][1][1]["faults"] == {"back": "black"}
    assert collect_faulty_episodes(gone, black)[0][1][1]["faults"] == {"back": "gone"}


def test_the_rate_of_a_fault_is_its_probability() -> None:
    episodes = collect_faulty_episodes(Fault(view="back", kind="black", probability=0.2), num_episodes=200)
    is_failing = [bool(info.get("faults")) for episode in episodes for _, info in episode]
    assert np.mean(is_failing) == pytest.approx(0.2, abs=0.03)


def test_noise_does_not_shift_the_start_of_other_faults() -> None:
    def collect_presence(kind: FaultKind) -> list[bool]:
        faults = (Fault(view="side", kind=kind, probability=0.3), Fault(view="back", kind="gone", probability=0.3))
        return [
            bool(observation[MASK][2])
            for episode in collect_faulty_episodes(*faults, num_episodes=5)
            for observation, _ in episode
        ]

    assert collect_presence("noise") == collect_presence("black")


def test_only_a_seeded_reset_ends_a_fault_that_lasts_forever() -> None:
    env = FaultInjector(RandomImageEnv(), [Fault(view="back", kind="gone", lasts="forever", at_step=1)])
    env.reset(seed=0)
    env.step(0)
    assert env.reset()[0][MASK][2] == 0
    assert env.reset(seed=0)[0][MASK][2] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_environment_repeats_the_faulty_image_and_continues_exactly(kind: FaultKind) -> None:
    fault = Fault(view="side", kind=kind, lasts="episode", at_step=2)
    env, other_env = (FaultInjector(RandomImageEnv(), [fault]) for _ in range(2))
    env.reset(seed=5)
    for _ in range(4):
        last_observation = env.step(0)[0]
    state = snapshot(env)
    assert are_equal(restore(other_env, state), last_observation)
    for _ in range(4):
        assert are_equal(env.step(0)[0], other_env.step(0)[0])
    assert are_equal(env.reset()[0], other_env.reset()[0])


def test_a_fault_of_a_derived_view_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"got 'side_foreground', which is derived from 'side'\. Declare the fault for 'side'"
    ):
        FaultInjector(RandomImageEnv(), [Fault(view="side_foreground", kind="black", at_step=0)])


def test_a_fault_of_an_unknown_view_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"unknown view .* expected one of \['side', 'side_foreground', 'back'\], got 'top'"
    ):
        FaultInjector(RandomImageEnv(), [Fault(view="top", kind="black", at_step=0)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "blurred", "at_step": 0}, "expected one of black, frozen, noise, late, gone, nan, got 'blurred'"),
        ({"kind": "black", "lasts": "week", "at_step": 0}, "expected one of frame, episode, forever, got 'week'"),
        ({"kind": "black"}, "either probability or at_step, got probability None and at_step None"),
        (
            {"kind": "black", "at_step": 0, "probability": 0.1},
            "either probability or at_step, got probability 0.1 and at_step 0",
        ),
        ({"kind": "black", "probability": 1.5}, "a probability from 0 to 1, got 1.5"),
        ({"kind": "black", "at_step": -1}, "expected at_step >= 0, got -1"),
        ({"kind": "late", "at_step": 0, "late_frames": 0}, "expected late_frames >= 1, got 0"),
    ],
)
def test_invalid_fault_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault(view="side", **settings)


def test_every_environment_of_a_vector_has_the_faults() -> None:
    fault = Fault(view="row", kind="gone", lasts="episode", at_step=1)
    vector = make_vector("toy/hidden_goal", 3, faults=[fault])
    vector.reset(seed=0)
    observation, *_, info = vector.step(np.zeros(3, int))
    assert observation[MASK].tolist() == [[1, 0]] * 3
    assert info["faults"]["row"].tolist() == ["gone"] * 3
    vector.close()
