"""Invalid transitions are refused by name and leave the replay buffer unchanged."""

from typing import Any

import numpy as np
import pytest

from manyview.data import ReplayBuffer
from manyview.envs import ContractError, View
from manyview.envs.foreground import remove_background
from manyview.envs.views import Observation

HEIGHT, WIDTH = 4, 6
VIEWS = (View("side", HEIGHT, WIDTH), View("cut", HEIGHT, WIDTH, derived_from="side"))
STACK = 2


def make_images(rng: np.random.Generator) -> dict[str, Any]:
    side = rng.integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
    return {"side": side, "cut": remove_background(side, rng.random((HEIGHT, WIDTH)) < 0.5, (0, 0, 0))}


def make_observation(images: dict[str, Any]) -> Observation:
    return {**images, "mask": np.ones(2, np.int8)}


def make_running_replay(action_dtype: Any = np.float32) -> tuple[ReplayBuffer, Observation]:
    """Return a replay buffer in the middle of an episode, and the next observation."""
    rng = np.random.default_rng(0)
    first, second, third = (make_images(rng) for _ in range(3))
    replay = ReplayBuffer(VIEWS, action_shape=(2,), action_dtype=action_dtype, capacity=4, frame_stack=STACK)
    replay.start_episode(make_observation(first))
    replay.add([0, 1], 0.5, False, make_observation(second))
    return replay, make_observation(third)


def get_contents(replay: ReplayBuffer) -> tuple[Any, ...]:
    return replay.inserted, replay.steps.tobytes(), *(ring.tobytes() for ring in replay.frames)


@pytest.mark.quality("S1")
@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"reward": np.nan}, "replay: reward: expected a finite number, got nan"),
        ({"reward": -np.inf}, "replay: reward: expected a finite number, got -inf"),
        ({"reward": np.float64(1e39)}, "replay: reward: expected a number that is finite in float32, got 1e"),
        ({"reward": None}, "replay: reward: expected a finite number, got NoneType"),
        ({"reward": [0.5]}, "replay: reward: expected a finite number, got list"),
        ({"action": [0.0, np.nan]}, r"replay: action: expected finite numbers of shape \(2,\), got \[ *0. nan\]"),
        ({"action": np.array([np.inf, 0])}, r"replay: action: expected finite numbers of shape \(2,\), got \[inf"),
        ({"action": [1e300, 0]}, r"replay: action: expected finite numbers of shape \(2,\), got \[1.e\+300"),
        ({"action": [0.0]}, r"replay: action: expected numbers of shape \(2,\), got list"),
        ({"action": np.zeros((2, 1))}, r"expected numbers of shape \(2,\), got float64 of shape \(2, 1\)"),
        ({"action": [[1], [1, 2]]}, r"replay: action: expected numbers of shape \(2,\), got list"),
        ({"action": ["left", "right"]}, r"replay: action: expected numbers of shape \(2,\), got list"),
        ({"terminated": 1}, "replay: terminated: expected True or False, got int 1"),
        ({"terminated": None}, "replay: terminated: expected True or False, got NoneType"),
    ],
)
def test_an_invalid_outcome_is_refused_by_its_name(outcome: dict[str, Any], message: str) -> None:
    replay, observation = make_running_replay()
    before = get_contents(replay)
    with pytest.raises(ContractError, match=message):
        replay.add(**{"action": [0, 1], "reward": 0.0, "terminated": False, "observation": observation, **outcome})
    assert get_contents(replay) == before


@pytest.mark.parametrize("action", [[0.5, 0], [300, 0], [-1, 0]])
def test_an_action_outside_its_integer_dtype_is_refused(action: list[float]) -> None:
    replay, observation = make_running_replay(np.uint8)
    before = get_contents(replay)
    with pytest.raises(ContractError, match=r"replay: action: expected whole numbers within uint8 of shape \(2,\)"):
        replay.add(action, 0.0, False, observation)
    assert get_contents(replay) == before


def replace_part(observation: Observation, name: str, value: Any) -> Observation:
    return {**observation, name: value}


@pytest.mark.quality("S1")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("side", np.full((HEIGHT, WIDTH, 3), np.nan), "replay: view 'side': .* values are not finite"),
        ("side", np.zeros((HEIGHT, WIDTH, 3)), "replay: view 'side': expected uint8 .*convert it to uint8"),
        ("side", np.zeros((HEIGHT, WIDTH + 1, 3), np.uint8), "replay: view 'side': .*resize it"),
        ("side", np.zeros((3, HEIGHT, WIDTH), np.uint8), "replay: view 'side': .*channels first"),
        ("side", np.zeros((HEIGHT, WIDTH, 3 * STACK), np.uint8), "replay: view 'side': expected uint8 of shape"),
        ("side", None, "replay: view 'side': expected uint8"),
        ("mask", np.array([1, 2], np.int8), r"replay: mask: expected zeros and ones, got \[1, 2\]"),
        ("mask", np.ones(3, np.int8), "replay: mask: expected int8 of shape"),
        (
            "mask",
            np.array([0, 1], np.int8),
            "'cut': expected an absent view, as its camera 'side' is absent, got a present one",
        ),
        ("top", np.zeros((HEIGHT, WIDTH, 3), np.uint8), "replay: observation: expected exactly .*unknown 'top'"),
    ],
)
def test_an_invalid_observation_is_refused_by_its_name(name: str, value: Any, message: str) -> None:
    replay, observation = make_running_replay()
    before = get_contents(replay)
    with pytest.raises(ContractError, match=message):
        replay.add([0, 1], 0.0, False, replace_part(observation, name, value))
    with pytest.raises(ContractError, match=message):
        replay.start_episode(replace_part(observation, name, value))
    assert get_contents(replay) == before


def test_a_derived_view_that_is_not_cut_out_of_its_camera_is_refused() -> None:
    replay, observation = make_running_replay()
    changed_image = observation["cut"].copy()
    changed_image[1, 2] = observation["side"][1, 2] ^ 1
    before = get_contents(replay)
    with pytest.raises(ContractError, match=r"view 'cut': expected the image of 'side' or the fill .* got 1 pixels"):
        replay.add([0, 1], 0.0, False, replace_part(observation, "cut", changed_image))
    assert get_contents(replay) == before


def test_adding_outside_a_running_episode_is_refused() -> None:
    replay, observation = make_running_replay()
    empty = ReplayBuffer(VIEWS, action_shape=(2,), capacity=4, frame_stack=STACK)
    with pytest.raises(ContractError, match=r"a running episode, got no episode yet\. Call start_episode\(\)"):
        empty.add([0, 1], 0.0, False, observation)
    replay.add([0, 1], 0.0, True, observation)
    with pytest.raises(ContractError, match=r"a running episode, got a terminated episode\. Call start_episode\(\)"):
        replay.add([0, 1], 0.0, False, observation)
    replay.start_episode(observation)
    assert replay.inserted == 4


def test_adding_after_a_repeated_observation_is_refused() -> None:
    """It ends its episode, as a second one would be stacked differently when sampled."""
    replay, observation = make_running_replay()
    replay.add([0, 1], 0.0, False, observation)
    replay.add([0, 1], 0.0, False, observation, repeated=True)
    before = get_contents(replay)
    with pytest.raises(
        ContractError, match=r"got an episode that ended because no camera was present\. Call start_episode\(\)"
    ):
        replay.add([0, 1], 0.0, False, observation)
    assert get_contents(replay) == before
