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

# Cameras that are broken on purpose are also warned of; tests/unit/envs/wrappers/test_sanity.py has that.
pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
LASTS: tuple[FaultDuration, ...] = get_args(FaultDuration)
FILL = (9, 9, 9)


class Flicker(MultiViewEnv):
    """Two cameras whose pictures are all different, and the first with its background removed."""

    episode_steps = 8

    def __init__(self) -> None:
        views = (View("side", 6, 7), View("side_foreground", 6, 7, derived_from="side", fill=FILL), View("back", 4, 4))
        super().__init__(views, spaces.Discrete(2))
        self._step = 0
        self._pictures: dict[str, Image | None] = {}
        self.side_fails = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._step += 1
        return self._drawn(), float(self.np_random.random()), False, self._step >= self.episode_steps, {}

    def _drawn(self) -> Observation:
        side, back = (self.np_random.integers(256, size=shape, dtype=np.uint8) for shape in ((6, 7, 3), (4, 4, 3)))
        foreground = self.np_random.random((6, 7)) < 0.5
        self._pictures = {"side": side, "side_foreground": remove_background(side, foreground, FILL), "back": back}
        if self.side_fails:
            self._pictures["side"] = self._pictures["side_foreground"] = None
        return self.observe(self._pictures)

    def snapshot(self) -> State:
        return {"step": self._step, "rng": get_rng_state(self.np_random), "images": dict(self._pictures)}

    def restore(self, state: State) -> Observation:
        self._step, self._pictures = state["step"], dict(state["images"])
        self.np_random = restore_rng(state["rng"])
        return self.observe(self._pictures)


EVERYTHING = [
    *(Fault(view="side", kind=kind, probability=0.1) for kind in KINDS),
    *(Fault(view="back", kind=kind, lasts=lasts, probability=0.02) for kind in KINDS for lasts in LASTS),
]


class TestFaultyContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return wrap(Flicker(), faults=EVERYTHING, frame_stack=2)


class TestFaultyToyContract(EnvironmentContract):
    def make_env(self) -> gym.Env[Observation, Any]:
        faults = [Fault(view="row", kind=kind, lasts="episode", probability=0.02) for kind in KINDS]
        return make("toy/hidden_goal_continuous", faults=faults, frame_stack=3)


def play(
    env: gym.Env[Observation, Any], episodes: int, *, seed: int = 0
) -> list[list[tuple[Observation, dict[str, Any]]]]:
    """Every observation with its info, by episode."""
    env.action_space.seed(seed)
    played = []
    for episode in range(episodes):
        seen = [env.reset(seed=seed if episode == 0 else None)]
        over = False
        while not over:
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            seen.append((observation, info))
            over = terminated or truncated
        played.append(seen)
    return played


def flickering(*faults: Fault, episodes: int = 1) -> list[list[tuple[Observation, dict[str, Any]]]]:
    return play(FaultInjector(Flicker(), faults), episodes)


def pictures(episode: list[tuple[Observation, dict[str, Any]]], view: str) -> list[Image]:
    return [observation[view] for observation, _ in episode]


def is_showing(lasts: FaultDuration, *, episode: int, step: int, begins: int) -> bool:
    match lasts:
        case "frame":
            return step == begins
        case "episode":
            return step >= begins
        case "forever":
            return episode > 0 or step >= begins


BEGINS = 4
EPISODES = 3


def encoded(mem: MEM, observations: Sequence[Observation]) -> Features:
    def tensor(view: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([observation[view].transpose(2, 0, 1) for observation in observations]))

    views = torch.stack([tensor(name) for name in mem.view_names], dim=1)
    mask = torch.from_numpy(np.stack([observation[MASK] for observation in observations])).bool()
    return mem.encode(views, mask)


@pytest.mark.quality("S4")
@pytest.mark.parametrize("lasts", LASTS)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_camera_does_the_bonus_is_finite_and_the_mask_right(kind: FaultKind, lasts: FaultDuration) -> None:
    fault = Fault(view="row", kind=kind, lasts=lasts, at_step=BEGINS)
    env = wrap(HiddenGoal(cells=10, episode_steps=12), faults=[fault])
    episodes = play(env, EPISODES)
    for number, episode in enumerate(episodes):
        for step, (observation, info) in enumerate(episode):
            showing = is_showing(lasts, episode=number, step=step, begins=BEGINS)
            assert info.get("faults", {}) == ({"row": kind} if showing else {})
            assert observation[MASK].tolist() == [1, int(not (showing and kind == "gone"))]
        gone = [info for _, info in episode if info.get("faults") == {"row": "gone"}]
        assert episode[-1][1]["episode"].get("absent", {}) == ({"row": len(gone)} if gone else {})
    mem = MEM(("column", "row"), (1, 20, 20), MEMConfig(latent_dim=16, bank=0))
    features = encoded(mem, [observation for episode in episodes for observation, _ in episode])
    for _ in range(3):  # the running scales move too
        assert mem.compute_reward(features).isfinite().all()
    present = np.mean([observation[MASK][1] for episode in episodes for observation, _ in episode])
    assert mem.diagnose(features, beta=1.0).to_metrics()["present/row"] == pytest.approx(present)


def standing_still(lasts: FaultDuration) -> list[list[Observation]]:
    """Groups of observations through which the frozen camera shows one picture."""
    fault = Fault(view="row", kind="frozen", lasts=lasts, at_step=BEGINS)
    env = wrap(HiddenGoal(cells=10, episode_steps=12), faults=[fault])
    observations = [[observation for observation, _ in episode] for episode in play(env, EPISODES)]
    first = BEGINS - 1  # the picture that it then repeats
    match lasts:
        case "frame":
            return [episode[first : BEGINS + 1] for episode in observations]
        case "episode":
            return [episode[first:] for episode in observations]
        case "forever":
            return [[observation for episode in observations for observation in episode][first:]]


@pytest.mark.quality("S4")
@pytest.mark.parametrize("lasts", LASTS)
def test_a_frozen_view_pays_exactly_nothing(lasts: FaultDuration) -> None:
    mem = MEM(("column", "row"), (1, 20, 20), MEMConfig(latent_dim=16, bank=0))
    groups = standing_still(lasts)
    paid = 0.0
    for rows in groups:
        distances, there = compute_distances(encoded(mem, rows), k=mem.config.k)
        assert there.all()
        assert distances[:, 1].eq(0.0).all()
        paid += float(distances[:, 0].sum())
    assert paid > 0, "the other camera moves, and pays"


def test_a_black_camera_is_black_and_a_noisy_one_is_noise() -> None:
    (episode,) = flickering(
        Fault(view="side", kind="black", at_step=2, lasts="episode"),
        Fault(view="back", kind="noise", at_step=0, lasts="episode"),
    )
    (true,) = flickering()
    side, back = pictures(episode, "side"), pictures(episode, "back")
    assert [bool(picture.any()) for picture in side] == [True, True] + [False] * 7
    assert len({picture.tobytes() for picture in back}) == len(back)
    assert not any(np.array_equal(one, other) for one, other in zip(back, pictures(true, "back"), strict=True))


def test_a_frozen_camera_repeats_the_last_picture_it_gave() -> None:
    (true,), (episode,) = flickering(), flickering(Fault(view="side", kind="frozen", at_step=3, lasts="episode"))
    for name in ("side", "side_foreground"):
        was, shown = pictures(true, name), pictures(episode, name)
        assert all(np.array_equal(was[min(step, 2)], shown[step]) for step in range(len(shown)))
    assert all(map(np.array_equal, pictures(true, "back"), pictures(episode, "back")))


@pytest.mark.parametrize(("lasts", "different"), [("forever", 2), ("episode", 4)])
def test_only_a_camera_frozen_for_ever_stays_so_over_resets(lasts: FaultDuration, different: int) -> None:
    episodes = flickering(Fault(view="side", kind="frozen", at_step=2, lasts=lasts), episodes=2)
    seen = {picture.tobytes() for episode in episodes for picture in pictures(episode, "side")}
    assert len(seen) == different  # the two pictures before it froze, once or in each episode


@pytest.mark.parametrize("late_frames", [1, 3, 20])
def test_a_late_camera_shows_what_was_there_so_many_frames_ago(late_frames: int) -> None:
    (true,), (episode,) = (
        flickering(),
        flickering(Fault(view="side", kind="late", at_step=0, lasts="episode", late_frames=late_frames)),
    )
    for name in ("side", "side_foreground"):
        was, shown = pictures(true, name), pictures(episode, name)
        assert all(np.array_equal(was[max(0, step - late_frames)], shown[step]) for step in range(len(shown)))


def test_a_camera_that_is_gone_takes_its_derived_view_along() -> None:
    (episode,) = flickering(Fault(view="side", kind="gone", at_step=4))
    masks = [observation[MASK].tolist() for observation, _ in episode]
    assert masks == [[1, 1, 1]] * 4 + [[0, 0, 1]] + [[1, 1, 1]] * 4
    assert not episode[4][0]["side"].any()
    assert not episode[4][0]["side_foreground"].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_derived_view_is_always_what_its_mask_cuts_out_of_its_camera(kind: FaultKind) -> None:
    faults = [Fault(view="side", kind=kind, lasts="episode", probability=0.3)]
    for episode in flickering(*faults, episodes=5):
        for observation, _ in episode:
            if observation[MASK][0]:
                shown = observation["side_foreground"]
                mask = extract_foreground_mask(shown, FILL)
                assert np.array_equal(shown, remove_background(observation["side"], mask, FILL))


def test_a_noisy_camera_shows_its_noise_in_the_derived_view_where_the_foreground_was() -> None:
    (true,), (episode,) = flickering(), flickering(Fault(view="side", kind="noise", at_step=0, lasts="episode"))
    for (was, _), (shown, _) in zip(true, episode, strict=True):
        mask = extract_foreground_mask(was["side_foreground"], FILL)
        assert np.array_equal(shown["side_foreground"], remove_background(shown["side"], mask, FILL))
        assert not np.array_equal(shown["side_foreground"], was["side_foreground"])


def test_a_camera_that_is_absent_by_itself_stays_absent() -> None:
    bare = Flicker()
    env = FaultInjector(bare, [Fault(view="side", kind=kind, probability=0.5) for kind in KINDS])
    env.reset(seed=0)
    bare.side_fails = True
    for _ in range(50):
        observation = env.step(0)[0]
        assert observation[MASK].tolist() == [0, 0, 1]
        assert not observation["side"].any()


def test_faults_change_nothing_but_what_is_seen() -> None:
    def outcome(env: gym.Env[Observation, Any]) -> list[Any]:
        env.reset(seed=3)
        return [env.step(0)[1:4] for _ in range(Flicker.episode_steps)]

    assert outcome(FaultInjector(Flicker(), EVERYTHING)) == outcome(Flicker())


def test_the_first_declared_of_two_faults_shows() -> None:
    black, gone = (Fault(view="back", kind=kind, at_step=1) for kind in ("black", "gone"))
    assert flickering(black, gone)[0][1][1]["faults"] == {"back": "black"}
    assert flickering(gone, black)[0][1][1]["faults"] == {"back": "gone"}


def test_a_fault_comes_as_often_as_its_probability_says() -> None:
    episodes = flickering(Fault(view="back", kind="black", probability=0.2), episodes=200)
    failing = [bool(info.get("faults")) for episode in episodes for _, info in episode]
    assert np.mean(failing) == pytest.approx(0.2, abs=0.03)


def test_noise_does_not_shift_when_other_faults_begin() -> None:
    def times(kind: FaultKind) -> list[bool]:
        faults = (Fault(view="side", kind=kind, probability=0.3), Fault(view="back", kind="gone", probability=0.3))
        return [bool(obs[MASK][2]) for episode in flickering(*faults, episodes=5) for obs, _ in episode]

    assert times("noise") == times("black")


def test_a_seeded_reset_repairs_what_lasts_for_ever_and_another_reset_does_not() -> None:
    env = FaultInjector(Flicker(), [Fault(view="back", kind="gone", lasts="forever", at_step=1)])
    env.reset(seed=0)
    env.step(0)
    assert env.reset()[0][MASK][2] == 0
    assert env.reset(seed=0)[0][MASK][2] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_environment_shows_the_broken_picture_again_and_goes_on_alike(kind: FaultKind) -> None:
    fault = Fault(view="side", kind=kind, lasts="episode", at_step=2)
    env, other = (FaultInjector(Flicker(), [fault]) for _ in range(2))
    env.reset(seed=5)
    for _ in range(4):
        shown = env.step(0)[0]
    state = snapshot(env)
    assert are_equal(restore(other, state), shown)
    for _ in range(4):
        assert are_equal(env.step(0)[0], other.step(0)[0])
    assert are_equal(env.reset()[0], other.reset()[0])


def test_a_derived_view_has_no_camera_that_could_fail() -> None:
    with pytest.raises(
        ValueError, match=r"got 'side_foreground', which is derived from 'side'\. Declare the fault for 'side'"
    ):
        FaultInjector(Flicker(), [Fault(view="side_foreground", kind="black", at_step=0)])


def test_a_fault_of_a_view_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"unknown view .* expected one of \['side', 'side_foreground', 'back'\], got 'top'"
    ):
        FaultInjector(Flicker(), [Fault(view="top", kind="black", at_step=0)])


@pytest.mark.parametrize(
    ("wrong", "says"),
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
def test_a_fault_that_makes_no_sense_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Fault(view="side", **wrong)


def test_a_vector_environment_has_the_faults_in_every_part() -> None:
    fault = Fault(view="row", kind="gone", lasts="episode", at_step=1)
    vector = make_vector("toy/hidden_goal", 3, faults=[fault])
    vector.reset(seed=0)
    observation, *_, info = vector.step(np.zeros(3, int))
    assert observation[MASK].tolist() == [[1, 0]] * 3
    assert info["faults"]["row"].tolist() == ["gone"] * 3
    vector.close()
