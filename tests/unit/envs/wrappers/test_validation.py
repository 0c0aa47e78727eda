"""Wrong actions, observations, rewards and flags, a thousand of them, made by chance and every one refused."""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from manyview.envs import MASK, ContractError, MultiViewEnv, View, make, wrap
from manyview.envs.testing import are_equal
from manyview.envs.views import Observation
from manyview.envs.wrappers.observation import SelectViews
from manyview.envs.wrappers.validation import CallValidator
from quality.plugin import Figure

VIEWS = (View("side", 12, 10), View("back", 8, 9, 1, fill=(0,)))
NAMES = [view.name for view in VIEWS]
CASES = 1000
NOT_FINITE = (math.nan, math.inf, -math.inf)

Rng = np.random.Generator
Returned = tuple[Any, ...]
Spoil = Callable[[Observation, Rng], tuple[Any, str]]


class Obedient(MultiViewEnv):
    """Shows and pays what it is told to, right or wrong."""

    def __init__(self, action_space: spaces.Space[Any] | None = None) -> None:
        super().__init__(VIEWS, action_space or spaces.Discrete(2))
        self.reset_returns: Any = None
        self.step_returns: Any = None
        self.received: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        returned: tuple[Observation, dict[str, Any]] = self.reset_returns or (good_observation(), {})
        return returned

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.received.append(action)
        returned: tuple[Observation, float, bool, bool, dict[str, Any]]
        returned = self.step_returns or (good_observation(), 0.0, False, False, {})
        return returned


def good_observation() -> Observation:
    pictures: Observation = {view.name: np.arange(math.prod(view.shape)).astype(np.uint8) for view in VIEWS}
    return {
        **{view.name: pictures[view.name].reshape(view.shape) for view in VIEWS},
        MASK: np.ones(len(VIEWS), np.int8),
    }


def any_view(rng: Rng) -> View:
    return VIEWS[rng.integers(len(VIEWS))]


def any_of(rng: Rng, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


# Each takes a good observation and returns a wrong one, and the field that has to be named.


def wrong_shape(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = any_view(rng)
    shape = tuple(any_of(rng, [size, size + 1, max(1, size - 1), 2 * size, 1]) for size in view.shape)
    if shape == view.shape:
        shape = shape[: rng.integers(3)]
    observation[view.name] = rng.integers(256, size=shape, dtype=np.uint8)
    return observation, f"view {view.name!r}"


def wrong_dtype(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = any_view(rng)
    dtype = any_of(rng, ["int8", "int16", "uint16", "int64", "float16", "float32", "float64", "bool", "complex64", "O"])
    observation[view.name] = observation[view.name].astype(dtype)
    return observation, f"view {view.name!r}"


def wrong_range(observation: Observation, rng: Rng) -> tuple[Any, str]:
    """As images often come: 0 to 1, -1 to 1, or beyond a byte."""
    view = any_view(rng)
    low, high = any_of(rng, [(0, 1), (-1, 1), (-128, 127), (0, 65535), (256, 300)])
    observation[view.name] = rng.uniform(low, high, view.shape).astype(any_of(rng, ["float32", "float64", "int32"]))
    return observation, f"view {view.name!r}"


def not_finite(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = any_view(rng)
    picture = observation[view.name].astype(any_of(rng, ["float32", "float64"]))
    picture.flat[rng.integers(picture.size)] = any_of(rng, NOT_FINITE)
    observation[view.name] = picture
    return observation, f"view {view.name!r}"


def wrong_channel_order(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = any_view(rng)
    order = any_of(rng, [(2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 2, 0), (1, 0, 2)])
    observation[view.name] = observation[view.name].transpose(order)
    return observation, f"view {view.name!r}"


def no_array(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = any_view(rng)
    observation[view.name] = any_of(
        rng, [None, "picture", 3, observation[view.name].tolist(), b"\x00" * 360, [[1], [2, 3]]]
    )
    return observation, f"view {view.name!r}"


def missing_view(observation: Observation, rng: Rng) -> tuple[Any, str]:
    gone = rng.choice([*NAMES, MASK], size=rng.integers(1, 4), replace=False)
    return {name: part for name, part in observation.items() if name not in gone}, "observation"


def unknown_view(observation: Observation, rng: Rng) -> tuple[Any, str]:
    name: Any = any_of(rng, ["top", "Side", "side ", "", 0, None, ("side",)])
    extra: dict[Any, Any] = {**observation, name: observation["side"]}
    if rng.random() < 0.5:
        del extra["side"]
    return extra, "observation"


def no_dict(observation: Observation, rng: Rng) -> tuple[Any, str]:
    return any_of(rng, [None, observation["side"], list(observation.values()), tuple(observation), 0.0]), "observation"


def wrong_mask(observation: Observation, rng: Rng) -> tuple[Any, str]:
    number = int(any_of(rng, [2, -1, 3, 127, -128]))
    observation[MASK] = any_of(
        rng,
        [
            np.array([number, any_of(rng, [0, 1, number])], np.int8),
            np.array([any_of(rng, [0, 1]), number], np.int8),
            np.ones(len(VIEWS) + int(any_of(rng, [-1, 1])), np.int8),
            np.ones((1, len(VIEWS)), np.int8),
            np.ones(len(VIEWS), any_of(rng, ["bool", "int64", "float32", "uint8"])),
            np.full(len(VIEWS), any_of(rng, NOT_FINITE)),
            [1] * len(VIEWS),
            None,
        ],
    )
    return observation, "mask"


OBSERVATIONS: tuple[Spoil, ...] = (
    wrong_shape,
    wrong_dtype,
    wrong_range,
    not_finite,
    wrong_channel_order,
    no_array,
    missing_view,
    unknown_view,
    no_dict,
    wrong_mask,
)


@pytest.mark.quality("S2")
def test_a_thousand_wrong_observations_are_refused_in_the_same_step(figure: Figure) -> None:
    rng, bare = np.random.default_rng(0), Obedient()
    env = wrap(bare, name="robot", frame_stack=3)
    refused = 0
    for case in range(CASES):
        spoil = OBSERVATIONS[case % len(OBSERVATIONS)]
        observation, field = spoil(good_observation(), rng)
        at_reset = rng.random() < 0.2
        bare.reset_returns = bare.step_returns = None
        if not at_reset:
            env.reset()
            for _ in range(rng.integers(3)):
                env.step(0)
        bare.reset_returns = (observation, {})
        bare.step_returns = (observation, 0.0, bool(rng.integers(2)), False, {})
        with pytest.raises(ContractError) as refusal:
            env.reset() if at_reset else env.step(0)
        text = str(refusal.value)
        assert text.startswith(f"robot: {field}: expected "), f"{spoil.__name__}: {text}"
        assert ", got " in text
        refused += 1
    figure(refused, "cases")


@pytest.mark.quality("S2")
def test_channels_first_an_alpha_channel_and_floats_are_answered_with_the_remedy() -> None:
    bare = Obedient()
    env = wrap(bare)
    side = good_observation()["side"]
    for wrong, remedy in (
        (side.transpose(2, 0, 1), "transpose it to height, width, channels"),
        (np.concatenate([side, side[..., :1]], axis=2), r"image\[..., :3\] drops it"),
        (side[:6], "resize it"),
        (side / 255, "scale it to 0..255 and convert it to uint8"),
        (side.astype(np.int64), "convert it to uint8"),
    ):
        bare.step_returns = ({**good_observation(), "side": wrong}, 0.0, False, False, {})
        env.reset()
        with pytest.raises(ContractError, match=remedy):
            env.step(0)


def wrong_rewards(rng: Rng) -> Any:
    return any_of(
        rng,
        [
            *NOT_FINITE,
            np.float32(any_of(rng, NOT_FINITE)),
            np.float64(any_of(rng, NOT_FINITE)),
            np.array(any_of(rng, NOT_FINITE)),
            np.zeros(rng.integers(1, 3)),
            None,
            "1.0",
            10**400,
            1j,
            [0.0],
            {},
        ],
    )


@pytest.mark.quality("S1")
def test_a_reward_that_is_no_finite_number_is_refused_in_the_same_step() -> None:
    rng, bare = np.random.default_rng(1), Obedient()
    env = wrap(bare, name="robot")
    for _ in range(200):
        env.reset()
        bare.step_returns = (good_observation(), wrong_rewards(rng), False, False, {})
        with pytest.raises(ContractError, match=r"robot: reward: expected a finite number, got"):
            env.step(0)
        bare.step_returns = None


@pytest.mark.quality("S1")
def test_a_picture_that_is_not_finite_says_how_many_of_its_values() -> None:
    bare = Obedient()
    env = wrap(bare, name="robot", frame_stack=3)
    for value in NOT_FINITE:
        env.reset()
        picture = np.zeros(VIEWS[0].shape, np.float32)
        picture[2:4, 5] = value
        bare.step_returns = ({**good_observation(), "side": picture}, 0.0, False, False, {})
        with pytest.raises(ContractError, match=r"robot: view 'side': expected uint8.*got float32.*6 of its values"):
            env.step(0)
        bare.step_returns = None


BOXES = (
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(0.0, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([-1.0, 1e6], np.float32)),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Box(-5, 5, (2,), np.int64),
)


def outside(space: spaces.Box, place: int, rng: Rng) -> float | None:
    """Well beyond a bound, if there is one; the farther the wider the bounds."""
    low, high = float(space.low.flat[place]), float(space.high.flat[place])
    width = high - low if np.isfinite(high - low) else 1.0
    far = 1 + width * rng.uniform(0.001, 3)
    far = far if np.issubdtype(space.dtype, np.floating) else round(far)
    beyond = [number for number in (low - far, high + far) if np.isfinite(number)]
    return float(any_of(rng, beyond)) if beyond else None


def wrong_vector(space: spaces.Box, rng: Rng) -> Any:
    action = np.asarray(space.sample(), np.float64)
    place = int(rng.integers(action.size))
    kind = any_of(rng, ["not finite", "out of bounds", "shape", "no numbers"])
    if kind == "out of bounds" and (number := outside(space, place, rng)) is not None:
        action.flat[place] = number
        return action.round().astype(np.int64) if number % 1 == 0 else action
    if kind == "shape":
        return any_of(rng, [action[None], action.ravel()[:-1], np.append(action, 0.0), 0.0, [[1.0], [1.0, 2.0]]])
    if kind == "no numbers":
        return any_of(rng, [None, "left", action.astype(str), action > 0, action + 1j, action.astype(object), {}])
    action.flat[place] = any_of(rng, NOT_FINITE)
    return action.astype(any_of(rng, ["float32", "float64"]))


@pytest.mark.quality("S1")
@pytest.mark.parametrize("space", BOXES, ids=str)
def test_a_senseless_action_never_reaches_the_environment(space: spaces.Box) -> None:
    rng, bare = np.random.default_rng(2), Obedient(space)
    space.seed(0)
    env = wrap(bare, name="robot")
    env.reset()
    for _ in range(200):
        wrong = wrong_vector(space, rng)
        with pytest.raises(ContractError, match=r"robot: action: expected (.|\n)* got"):
            env.step(wrong)
        assert not bare.received, f"{wrong!r} became {bare.received}"
    env.step(space.sample())


@pytest.mark.quality("S1")
def test_a_choice_that_does_not_exist_is_refused() -> None:
    rng, bare = np.random.default_rng(3), Obedient(spaces.Discrete(3, start=-1))
    env = wrap(bare, name="robot")
    env.reset()
    for _ in range(200):
        beyond = int(any_of(rng, [2, -2, 1000, -(2**40)]))
        wrong = any_of(
            rng, [*NOT_FINITE, beyond, np.int64(beyond), 0.0, 0.5, True, None, "0", [0], np.zeros(1, int), 1j]
        )
        with pytest.raises(ContractError, match=r"robot: action: expected an integer from -1 to 1, got"):
            env.step(wrong)
    assert not bare.received


def test_an_action_that_overshoots_by_rounding_is_clipped_and_one_of_another_type_converted() -> None:
    bare = Obedient(spaces.Box(-1.0, 1.0, (2,), np.float32))
    env = wrap(bare)
    env.reset()
    env.step(np.array([1.0 + 1e-6, -1.0 - 1e-6], np.float64))
    env.step([1, 0])
    assert [action.tolist() for action in bare.received] == [[1.0, -1.0], [1.0, 0.0]]
    assert all(action.dtype == np.float32 for action in bare.received)


def test_a_fraction_is_no_whole_number() -> None:
    bare = Obedient(spaces.Box(0, 255, (2,), np.uint8))
    env = wrap(bare)
    env.reset()
    with pytest.raises(ContractError, match="integers"):
        env.step(np.array([0.5, 1.0]))
    env.step(np.array([3.0, 255.0]))
    assert bare.received[0].dtype == np.uint8


@pytest.mark.parametrize("field", ["terminated", "truncated"])
@pytest.mark.parametrize("flag", [0, 1, None, "False", np.array([True]), 0.0, math.nan])
def test_a_flag_that_is_neither_true_nor_false_is_refused(field: str, flag: Any) -> None:
    bare = Obedient()
    env = wrap(bare, name="robot")
    env.reset()
    flags = (flag, False) if field == "terminated" else (False, flag)
    bare.step_returns = (good_observation(), 0.0, *flags, {})
    with pytest.raises(ContractError, match=f"robot: {field}: expected True or False, got"):
        env.step(0)


@pytest.mark.parametrize("returned", [(good_observation(), 0.0, False, {}), [good_observation()], "done"])
def test_a_step_that_returns_something_else_is_refused(returned: Any) -> None:
    bare = Obedient()
    env = wrap(bare, name="robot")
    env.reset()
    bare.step_returns = returned
    with pytest.raises(ContractError, match=r"robot: result of step\(\): expected \(observation, reward"):
        env.step(0)


def test_a_reset_that_returns_only_an_observation_is_refused() -> None:
    bare = Obedient()
    bare.reset_returns = good_observation()
    with pytest.raises(ContractError, match=r"robot: result of reset\(\): expected \(observation, info\)"):
        wrap(bare, name="robot").reset()


def test_info_has_to_be_a_dict() -> None:
    bare = Obedient()
    env = wrap(bare, name="robot")
    env.reset()
    bare.step_returns = (good_observation(), 0.0, False, False, None)
    with pytest.raises(ContractError, match="robot: info: expected a dict, got NoneType None"):
        env.step(0)


def test_an_episode_that_broke_cannot_go_on() -> None:
    bare = Obedient()
    env = wrap(bare, name="robot")
    env.reset()
    bare.step_returns = (good_observation(), math.nan, False, False, {})
    with pytest.raises(ContractError, match="reward"):
        env.step(0)
    bare.step_returns = None
    with pytest.raises(ContractError, match="a running episode"):
        env.step(0)
    env.reset()
    env.step(0)


def absent(*names: str) -> Observation:
    observation = good_observation()
    observation[MASK] = np.array([view.name not in names for view in VIEWS], np.int8)
    return observation


def test_the_pixels_of_an_absent_view_are_zeroed() -> None:
    bare = Obedient()
    env = wrap(bare)
    bare.reset_returns = (absent("back"), {})
    observation, _ = env.reset()
    assert observation[MASK].tolist() == [1, 0]
    assert not observation["back"].any()
    assert observation["side"].any()


def test_a_blind_episode_is_truncated_with_the_last_thing_seen() -> None:
    bare = Obedient()
    env = wrap(bare)
    before, _ = env.reset()
    bare.step_returns = (absent("side", "back"), 1.0, False, False, {})
    observation, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, info["blind"]) == (False, True, True)
    assert are_equal(observation, before)
    assert info["episode"]["absent"] == {"side": 1, "back": 1}


def test_an_environment_that_never_sees_anything_cannot_begin() -> None:
    bare = Obedient()
    bare.reset_returns = (absent("side", "back"), {})
    with pytest.raises(ContractError, match="reset: expected at least one view present, got no view in 3"):
        wrap(bare).reset()


def test_an_episode_says_how_often_each_view_was_absent() -> None:
    bare = Obedient()
    env = wrap(bare)
    env.reset()
    for names in (["side"], ["back"], ["side"], []):
        bare.step_returns = (absent(*names), 0.0, False, names == [], {})
        info = env.step(0)[4]
    assert info["episode"] == {"return": 0.0, "steps": 4, "frames": 4, "absent": {"side": 2, "back": 1}}


def test_the_sums_of_an_episode_are_its_own_whether_the_one_before_ended_or_broke_off() -> None:
    bare = Obedient()
    env = wrap(bare)
    for steps, ends in ((2, True), (3, False), (4, True)):
        env.reset()
        for step in range(steps):
            bare.step_returns = (good_observation(), 1.5, ends and step == steps - 1, False, {"frames": 4})
            info = env.step(0)[4]
        if ends:
            assert info["episode"] == {"return": 1.5 * steps, "steps": steps, "frames": 4 * steps}


def test_chosen_views_keep_their_places_in_the_mask() -> None:
    bare = Obedient()
    env = wrap(SelectViews(bare, ["back", "side"]))
    for name, mask in (("side", [1, 0]), ("back", [0, 1])):
        bare.reset_returns = (absent(name), {})
        observation, _ = env.reset()
        assert observation[MASK].tolist() == mask
        assert [bool(observation[view].any()) for view in ("back", "side")] == [bool(there) for there in mask]


def test_every_environment_of_ours_has_both_sides_of_the_boundary() -> None:
    env: gym.Env[Any, Any] = make("toy/identity")
    layers = []
    while isinstance(env, gym.Wrapper):
        layers.append(type(env).__name__)
        env = env.env
    assert layers[0] == CallValidator.__name__
    assert layers.index("FrameStack") < layers.index("OutputValidator")
