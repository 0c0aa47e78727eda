"""Validation of observations, rewards, flags and actions, with random invalid values."""

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
VIEW_NAMES = [view.name for view in VIEWS]
NUM_CASES = 1000
NON_FINITE = (math.nan, math.inf, -math.inf)

Rng = np.random.Generator
Result = tuple[Any, ...]
Corruption = Callable[[Observation, Rng], tuple[Any, str]]


class ScriptedEnv(MultiViewEnv):
    """Environment that returns `reset_result` and `step_result` if they are set, valid or not."""

    def __init__(self, action_space: spaces.Space[Any] | None = None) -> None:
        super().__init__(VIEWS, action_space or spaces.Discrete(2))
        self.reset_result: Any = None
        self.step_result: Any = None
        self.received_actions: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        result: tuple[Observation, dict[str, Any]] = self.reset_result or (make_observation(), {})
        return result

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.received_actions.append(action)
        result: tuple[Observation, float, bool, bool, dict[str, Any]]
        result = self.step_result or (make_observation(), 0.0, False, False, {})
        return result


def make_observation() -> Observation:
    images: Observation = {view.name: np.arange(math.prod(view.shape)).astype(np.uint8) for view in VIEWS}
    return {
        **{view.name: images[view.name].reshape(view.shape) for view in VIEWS},
        MASK: np.ones(len(VIEWS), np.int8),
    }


def choose_view(rng: Rng) -> View:
    return VIEWS[rng.integers(len(VIEWS))]


def choose(rng: Rng, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


# Each takes a valid observation and returns an invalid one and the field that the error must name.


def change_shape(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = choose_view(rng)
    shape = tuple(choose(rng, [size, size + 1, max(1, size - 1), 2 * size, 1]) for size in view.shape)
    if shape == view.shape:
        shape = shape[: rng.integers(3)]
    observation[view.name] = rng.integers(256, size=shape, dtype=np.uint8)
    return observation, f"view {view.name!r}"


def change_dtype(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = choose_view(rng)
    dtype = choose(rng, ["int8", "int16", "uint16", "int64", "float16", "float32", "float64", "bool", "complex64", "O"])
    observation[view.name] = observation[view.name].astype(dtype)
    return observation, f"view {view.name!r}"


def change_range(observation: Observation, rng: Rng) -> tuple[Any, str]:
    """Use a range that images often have: 0 to 1, -1 to 1, or beyond 8 bits."""
    view = choose_view(rng)
    low, high = choose(rng, [(0, 1), (-1, 1), (-128, 127), (0, 65535), (256, 300)])
    observation[view.name] = rng.uniform(low, high, view.shape).astype(choose(rng, ["float32", "float64", "int32"]))
    return observation, f"view {view.name!r}"


def add_non_finite_value(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = choose_view(rng)
    image = observation[view.name].astype(choose(rng, ["float32", "float64"]))
    image.flat[rng.integers(image.size)] = choose(rng, NON_FINITE)
    observation[view.name] = image
    return observation, f"view {view.name!r}"


def change_channel_order(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = choose_view(rng)
    order = choose(rng, [(2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 2, 0), (1, 0, 2)])
    observation[view.name] = observation[view.name].transpose(order)
    return observation, f"view {view.name!r}"


def replace_array(observation: Observation, rng: Rng) -> tuple[Any, str]:
    view = choose_view(rng)
    observation[view.name] = choose(
        rng, [None, "picture", 3, observation[view.name].tolist(), b"\x00" * 360, [[1], [2, 3]]]
    )
    return observation, f"view {view.name!r}"


def remove_views(observation: Observation, rng: Rng) -> tuple[Any, str]:
    missing_names = rng.choice([*VIEW_NAMES, MASK], size=rng.integers(1, 4), replace=False)
    return {name: values for name, values in observation.items() if name not in missing_names}, "observation"


def add_unknown_view(observation: Observation, rng: Rng) -> tuple[Any, str]:
    name: Any = choose(rng, ["top", "Side", "side ", "", 0, None, ("side",)])
    new_observation: dict[Any, Any] = {**observation, name: observation["side"]}
    if rng.random() < 0.5:
        del new_observation["side"]
    return new_observation, "observation"


def replace_dict(observation: Observation, rng: Rng) -> tuple[Any, str]:
    return choose(rng, [None, observation["side"], list(observation.values()), tuple(observation), 0.0]), "observation"


def change_mask(observation: Observation, rng: Rng) -> tuple[Any, str]:
    invalid_value = int(choose(rng, [2, -1, 3, 127, -128]))
    observation[MASK] = choose(
        rng,
        [
            np.array([invalid_value, choose(rng, [0, 1, invalid_value])], np.int8),
            np.array([choose(rng, [0, 1]), invalid_value], np.int8),
            np.ones(len(VIEWS) + int(choose(rng, [-1, 1])), np.int8),
            np.ones((1, len(VIEWS)), np.int8),
            np.ones(len(VIEWS), choose(rng, ["bool", "int64", "float32", "uint8"])),
            np.full(len(VIEWS), choose(rng, NON_FINITE)),
            [1] * len(VIEWS),
            None,
        ],
    )
    return observation, "mask"


CORRUPTIONS: tuple[Corruption, ...] = (
    change_shape,
    change_dtype,
    change_range,
    add_non_finite_value,
    change_channel_order,
    replace_array,
    remove_views,
    add_unknown_view,
    replace_dict,
    change_mask,
)


@pytest.mark.quality("S2")
def test_a_thousand_invalid_observations_are_refused_in_the_same_step(figure: Figure) -> None:
    rng, base_env = np.random.default_rng(0), ScriptedEnv()
    env = wrap(base_env, name="robot", frame_stack=3)
    num_refused = 0
    for case in range(NUM_CASES):
        corrupt = CORRUPTIONS[case % len(CORRUPTIONS)]
        observation, field = corrupt(make_observation(), rng)
        at_reset = rng.random() < 0.2
        base_env.reset_result = base_env.step_result = None
        if not at_reset:
            env.reset()
            for _ in range(rng.integers(3)):
                env.step(0)
        base_env.reset_result = (observation, {})
        base_env.step_result = (observation, 0.0, bool(rng.integers(2)), False, {})
        with pytest.raises(ContractError) as error:
            env.reset() if at_reset else env.step(0)
        text = str(error.value)
        assert text.startswith(f"robot: {field}: expected "), f"{corrupt.__name__}: {text}"
        assert ", got " in text
        num_refused += 1
    figure(num_refused, "cases")


@pytest.mark.quality("S2")
def test_errors_for_common_image_formats_name_the_remedy() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env)
    side = make_observation()["side"]
    for image, remedy in (
        (side.transpose(2, 0, 1), "transpose it to height, width, channels"),
        (np.concatenate([side, side[..., :1]], axis=2), r"image\[..., :3\] drops it"),
        (side[:6], "resize it"),
        (side / 255, "scale it to 0..255 and convert it to uint8"),
        (side.astype(np.int64), "convert it to uint8"),
    ):
        base_env.step_result = ({**make_observation(), "side": image}, 0.0, False, False, {})
        env.reset()
        with pytest.raises(ContractError, match=remedy):
            env.step(0)


def make_invalid_reward(rng: Rng) -> Any:
    return choose(
        rng,
        [
            *NON_FINITE,
            np.float32(choose(rng, NON_FINITE)),
            np.float64(choose(rng, NON_FINITE)),
            np.array(choose(rng, NON_FINITE)),
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
def test_a_reward_that_is_not_a_finite_number_is_refused_in_the_same_step() -> None:
    rng, base_env = np.random.default_rng(1), ScriptedEnv()
    env = wrap(base_env, name="robot")
    for _ in range(200):
        env.reset()
        base_env.step_result = (make_observation(), make_invalid_reward(rng), False, False, {})
        with pytest.raises(ContractError, match=r"robot: reward: expected a finite number, got"):
            env.step(0)
        base_env.step_result = None


@pytest.mark.quality("S1")
def test_the_error_for_a_non_finite_image_counts_its_values() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env, name="robot", frame_stack=3)
    for value in NON_FINITE:
        env.reset()
        image = np.zeros(VIEWS[0].shape, np.float32)
        image[2:4, 5] = value
        base_env.step_result = ({**make_observation(), "side": image}, 0.0, False, False, {})
        with pytest.raises(ContractError, match=r"robot: view 'side': expected uint8.*got float32.*6 of its values"):
            env.step(0)
        base_env.step_result = None


BOXES = (
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(0.0, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([-1.0, 1e6], np.float32)),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Box(-5, 5, (2,), np.int64),
)


def sample_out_of_bounds(space: spaces.Box, index: int, rng: Rng) -> float | None:
    """Return a number well out of bounds, or None without bounds.

    The wider the bounds, the larger the distance.
    """
    low, high = float(space.low.flat[index]), float(space.high.flat[index])
    width = high - low if np.isfinite(high - low) else 1.0
    distance = 1 + width * rng.uniform(0.001, 3)
    distance = distance if np.issubdtype(space.dtype, np.floating) else round(distance)
    numbers = [number for number in (low - distance, high + distance) if np.isfinite(number)]
    return float(choose(rng, numbers)) if numbers else None


def make_invalid_action(space: spaces.Box, rng: Rng) -> Any:
    action = np.asarray(space.sample(), np.float64)
    index = int(rng.integers(action.size))
    kind = choose(rng, ["not finite", "out of bounds", "shape", "no numbers"])
    if kind == "out of bounds" and (number := sample_out_of_bounds(space, index, rng)) is not None:
        action.flat[index] = number
        return action.round().astype(np.int64) if number % 1 == 0 else action
    if kind == "shape":
        return choose(rng, [action[None], action.ravel()[:-1], np.append(action, 0.0), 0.0, [[1.0], [1.0, 2.0]]])
    if kind == "no numbers":
        return choose(rng, [None, "left", action.astype(str), action > 0, action + 1j, action.astype(object), {}])
    action.flat[index] = choose(rng, NON_FINITE)
    return action.astype(choose(rng, ["float32", "float64"]))


@pytest.mark.quality("S1")
@pytest.mark.parametrize("space", BOXES, ids=str)
def test_an_invalid_action_never_reaches_the_environment(space: spaces.Box) -> None:
    rng, base_env = np.random.default_rng(2), ScriptedEnv(space)
    space.seed(0)
    env = wrap(base_env, name="robot")
    env.reset()
    for _ in range(200):
        action = make_invalid_action(space, rng)
        with pytest.raises(ContractError, match=r"robot: action: expected (.|\n)* got"):
            env.step(action)
        assert not base_env.received_actions, f"{action!r} became {base_env.received_actions}"
    env.step(space.sample())


@pytest.mark.quality("S1")
def test_an_invalid_discrete_action_is_refused() -> None:
    rng, base_env = np.random.default_rng(3), ScriptedEnv(spaces.Discrete(3, start=-1))
    env = wrap(base_env, name="robot")
    env.reset()
    for _ in range(200):
        number = int(choose(rng, [2, -2, 1000, -(2**40)]))
        action = choose(
            rng, [*NON_FINITE, number, np.int64(number), 0.0, 0.5, True, None, "0", [0], np.zeros(1, int), 1j]
        )
        with pytest.raises(ContractError, match=r"robot: action: expected an integer from -1 to 1, got"):
            env.step(action)
    assert not base_env.received_actions


def test_actions_are_clipped_after_rounding_errors_and_converted_to_the_type() -> None:
    base_env = ScriptedEnv(spaces.Box(-1.0, 1.0, (2,), np.float32))
    env = wrap(base_env)
    env.reset()
    env.step(np.array([1.0 + 1e-6, -1.0 - 1e-6], np.float64))
    env.step([1, 0])
    assert [action.tolist() for action in base_env.received_actions] == [[1.0, -1.0], [1.0, 0.0]]
    assert all(action.dtype == np.float32 for action in base_env.received_actions)


def test_a_fraction_is_refused_in_an_integer_action() -> None:
    base_env = ScriptedEnv(spaces.Box(0, 255, (2,), np.uint8))
    env = wrap(base_env)
    env.reset()
    with pytest.raises(ContractError, match="integers"):
        env.step(np.array([0.5, 1.0]))
    env.step(np.array([3.0, 255.0]))
    assert base_env.received_actions[0].dtype == np.uint8


@pytest.mark.parametrize("field", ["terminated", "truncated"])
@pytest.mark.parametrize("flag", [0, 1, None, "False", np.array([True]), 0.0, math.nan])
def test_a_flag_that_is_neither_true_nor_false_is_refused(field: str, flag: Any) -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env, name="robot")
    env.reset()
    flags = (flag, False) if field == "terminated" else (False, flag)
    base_env.step_result = (make_observation(), 0.0, *flags, {})
    with pytest.raises(ContractError, match=f"robot: {field}: expected True or False, got"):
        env.step(0)


@pytest.mark.parametrize("result", [(make_observation(), 0.0, False, {}), [make_observation()], "done"])
def test_a_step_that_returns_something_else_is_refused(result: Any) -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env, name="robot")
    env.reset()
    base_env.step_result = result
    with pytest.raises(ContractError, match=r"robot: result of step\(\): expected \(observation, reward"):
        env.step(0)


def test_a_reset_that_returns_only_an_observation_is_refused() -> None:
    base_env = ScriptedEnv()
    base_env.reset_result = make_observation()
    with pytest.raises(ContractError, match=r"robot: result of reset\(\): expected \(observation, info\)"):
        wrap(base_env, name="robot").reset()


def test_info_has_to_be_a_dict() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env, name="robot")
    env.reset()
    base_env.step_result = (make_observation(), 0.0, False, False, None)
    with pytest.raises(ContractError, match="robot: info: expected a dict, got NoneType None"):
        env.step(0)


def test_an_episode_cannot_continue_after_an_error() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env, name="robot")
    env.reset()
    base_env.step_result = (make_observation(), math.nan, False, False, {})
    with pytest.raises(ContractError, match="reward"):
        env.step(0)
    base_env.step_result = None
    with pytest.raises(ContractError, match="a running episode"):
        env.step(0)
    env.reset()
    env.step(0)


def make_observation_without(*names: str) -> Observation:
    observation = make_observation()
    observation[MASK] = np.array([view.name not in names for view in VIEWS], np.int8)
    return observation


def test_the_pixels_of_an_absent_view_are_zeroed() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env)
    base_env.reset_result = (make_observation_without("back"), {})
    observation, _ = env.reset()
    assert observation[MASK].tolist() == [1, 0]
    assert not observation["back"].any()
    assert observation["side"].any()


def test_a_blind_episode_is_truncated_with_the_last_observation() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env)
    last_observation, _ = env.reset()
    base_env.step_result = (make_observation_without("side", "back"), 1.0, False, False, {})
    observation, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, info["blind"]) == (False, True, True)
    assert are_equal(observation, last_observation)
    assert info["episode"]["absent"] == {"side": 1, "back": 1}


def test_a_reset_without_any_view_is_refused() -> None:
    base_env = ScriptedEnv()
    base_env.reset_result = (make_observation_without("side", "back"), {})
    with pytest.raises(ContractError, match="reset: expected at least one view present, got no view in 3"):
        wrap(base_env).reset()


def test_the_episode_info_counts_steps_without_each_view() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env)
    env.reset()
    for names in (["side"], ["back"], ["side"], []):
        base_env.step_result = (make_observation_without(*names), 0.0, False, names == [], {})
        info = env.step(0)[4]
    assert info["episode"] == {"return": 0.0, "steps": 4, "frames": 4, "absent": {"side": 2, "back": 1}}


def test_episode_sums_restart_after_complete_and_aborted_episodes() -> None:
    base_env = ScriptedEnv()
    env = wrap(base_env)
    for steps, is_complete in ((2, True), (3, False), (4, True)):
        env.reset()
        for step in range(steps):
            base_env.step_result = (make_observation(), 1.5, is_complete and step == steps - 1, False, {"frames": 4})
            info = env.step(0)[4]
        if is_complete:
            assert info["episode"] == {"return": 1.5 * steps, "steps": steps, "frames": 4 * steps}


def test_the_mask_has_the_order_of_the_selected_views() -> None:
    base_env = ScriptedEnv()
    env = wrap(SelectViews(base_env, ["back", "side"]))
    for name, mask in (("side", [1, 0]), ("back", [0, 1])):
        base_env.reset_result = (make_observation_without(name), {})
        observation, _ = env.reset()
        assert observation[MASK].tolist() == mask
        assert [bool(observation[view].any()) for view in ("back", "side")] == [bool(present) for present in mask]


def test_make_applies_both_validators() -> None:
    env: gym.Env[Any, Any] = make("toy/identity")
    layers = []
    while isinstance(env, gym.Wrapper):
        layers.append(type(env).__name__)
        env = env.env
    assert layers[0] == CallValidator.__name__
    assert layers.index("FrameStack") < layers.index("OutputValidator")
