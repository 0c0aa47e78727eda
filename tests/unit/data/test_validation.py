"""What must not enter the replay does not: it is refused by name, and the replay stays as it was."""

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


def frame(rng: np.random.Generator) -> dict[str, Any]:
    side = rng.integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
    return {"side": side, "cut": remove_background(side, rng.random((HEIGHT, WIDTH)) < 0.5, (0, 0, 0))}


def observed(frame: dict[str, Any]) -> Observation:
    return {**frame, "mask": np.ones(2, np.int8)}


def begun(action_dtype: Any = np.float32) -> tuple[ReplayBuffer, Observation]:
    """A replay in mid-episode, and the observation that comes next."""
    rng = np.random.default_rng(0)
    first, second, third = (frame(rng) for _ in range(3))
    replay = ReplayBuffer(VIEWS, action_shape=(2,), action_dtype=action_dtype, capacity=4, frame_stack=STACK)
    replay.start_episode(observed(first))
    replay.add([0, 1], 0.5, False, observed(second))
    return replay, observed(third)


def contents(replay: ReplayBuffer) -> tuple[Any, ...]:
    return replay.inserted, replay.steps.tobytes(), *(ring.tobytes() for ring in replay.frames)


@pytest.mark.quality("S1")
@pytest.mark.parametrize(
    ("outcome", "says"),
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
def test_a_wrong_outcome_is_refused_by_its_name(outcome: dict[str, Any], says: str) -> None:
    replay, observation = begun()
    before = contents(replay)
    with pytest.raises(ContractError, match=says):
        replay.add(**{"action": [0, 1], "reward": 0.0, "terminated": False, "observation": observation, **outcome})
    assert contents(replay) == before


@pytest.mark.parametrize("action", [[0.5, 0], [300, 0], [-1, 0]])
def test_an_action_that_is_no_whole_number_of_its_kind_is_refused(action: list[float]) -> None:
    replay, observation = begun(np.uint8)
    before = contents(replay)
    with pytest.raises(ContractError, match=r"replay: action: expected whole numbers within uint8 of shape \(2,\)"):
        replay.add(action, 0.0, False, observation)
    assert contents(replay) == before


def changed(observation: Observation, name: str, value: Any) -> Observation:
    return {**observation, name: value}


@pytest.mark.quality("S1")
@pytest.mark.parametrize(
    ("name", "value", "says"),
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
def test_a_wrong_observation_is_refused_by_its_name(name: str, value: Any, says: str) -> None:
    replay, observation = begun()
    before = contents(replay)
    with pytest.raises(ContractError, match=says):
        replay.add([0, 1], 0.0, False, changed(observation, name, value))
    with pytest.raises(ContractError, match=says):
        replay.start_episode(changed(observation, name, value))
    assert contents(replay) == before


def test_a_derived_view_that_is_not_cut_out_of_its_camera_is_refused() -> None:
    replay, observation = begun()
    painted = observation["cut"].copy()
    painted[1, 2] = observation["side"][1, 2] ^ 1
    before = contents(replay)
    with pytest.raises(ContractError, match=r"view 'cut': expected the image of 'side' or the fill .* got 1 pixels"):
        replay.add([0, 1], 0.0, False, changed(observation, "cut", painted))
    assert contents(replay) == before


def test_nothing_is_added_before_the_beginning_or_after_the_end() -> None:
    replay, observation = begun()
    empty = ReplayBuffer(VIEWS, action_shape=(2,), capacity=4, frame_stack=STACK)
    with pytest.raises(ContractError, match=r"a running episode, got no episode yet\. Call start_episode\(\)"):
        empty.add([0, 1], 0.0, False, observation)
    replay.add([0, 1], 0.0, True, observation)
    with pytest.raises(ContractError, match=r"a running episode, got a terminated episode\. Call start_episode\(\)"):
        replay.add([0, 1], 0.0, False, observation)
    replay.start_episode(observation)
    assert replay.inserted == 4


def test_nothing_is_added_after_an_observation_that_is_shown_again() -> None:
    """It ends its episode. A second one in a row would have another stack when sampled than when it was seen."""
    replay, observation = begun()
    replay.add([0, 1], 0.0, False, observation)
    replay.add([0, 1], 0.0, False, observation, repeated=True)
    before = contents(replay)
    with pytest.raises(
        ContractError, match=r"got an episode that ended because no camera was present\. Call start_episode\(\)"
    ):
        replay.add([0, 1], 0.0, False, observation)
    assert contents(replay) == before
