"""Inputs of the network from observations: state vectors, stacks and masks."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from manyview.runtime import ActionBounds, Policy, PolicySpec, VectorSpec, ViewSpec
from manyview.runtime.frame_stack import append_frame

SPEC = PolicySpec(
    views=(ViewSpec("front", 2, 2, 1), ViewSpec("wrist", 2, 2, 1)),
    vectors=(VectorSpec("joints", 2), VectorSpec("force", 1)),
    frame_stack=3,
    vector_stack=2,
    actions=ActionBounds((-1.0,), (1.0,)),
    memory=(VectorSpec("count", 1),),
)


class RecordingPolicy(Policy):
    """Policy that records network inputs; its recurrent state counts the steps."""

    action: float = 0.5

    def run_network(self, inputs: Any) -> dict[str, NDArray[Any]]:
        self.inputs = {name: value.copy() for name, value in inputs.items()}
        actions = np.full((self.num_robots, 1), self.action, np.float32)
        return {"actions": actions, "next_memory.count": inputs["memory.count"] + 1}


def make_observation(value: int, *, front: bool = True, **vectors: Any) -> dict[str, Any]:
    image = np.full((2, 2, 1), value, np.uint8)
    return {"front": image if front else None, "wrist": image, "joints": [value, 1.5], "force": [0.5], **vectors}


def test_inputs_have_the_names_shapes_and_types_of_the_spec() -> None:
    policy = RecordingPolicy(SPEC, num_robots=2)
    policy.act_batch([make_observation(1), make_observation(2, front=False)])
    actual = {name: (value.shape[1:], str(value.dtype)) for name, value in policy.inputs.items()}
    assert actual == {name: (tensor.shape, tensor.kind) for name, tensor in SPEC.inputs.items()}
    assert policy.inputs["mask"].tolist() == [[True, True], [False, True]]
    assert not policy.inputs["front"][1].any()


def test_frames_and_vectors_are_stacked_oldest_first() -> None:
    policy = RecordingPolicy(SPEC)
    expected = [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    for value, frames in enumerate(expected, 1):
        policy.act(make_observation(value))
        assert policy.inputs["front"][0, :, 0, 0, 0].tolist() == frames
        assert policy.inputs["joints"][0].tolist() == [[max(1, value - 1), 1.5], [value, 1.5]]
        assert policy.inputs["memory.count"].item() == value - 1
    policy.act(make_observation(5, front=False))
    policy.act(make_observation(6))
    assert policy.inputs["front"][0, :, 0, 0, 0].tolist() == [6, 6, 6]
    assert policy.inputs["wrist"][0, :, 0, 0, 0].tolist() == [4, 5, 6]
    policy.reset()
    policy.act(make_observation(7))
    assert policy.inputs["wrist"][0, :, 0, 0, 0].tolist() == [7, 7, 7]
    assert policy.inputs["joints"][0].tolist() == [[7, 1.5], [7, 1.5]]
    assert policy.inputs["memory.count"].item() == 0


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ({"joints": None}, "missing state vector 'joints': expected 2 numbers. Only views can be missing"),
        ({"joints": [1.0]}, r"invalid state vector 'joints': expected numbers of shape \[2\], got float64 of shape"),
        ({"joints": [[1.0, 2.0]]}, "invalid state vector 'joints'"),
        ({"joints": ["a", "b"]}, "invalid state vector 'joints'"),
        ({"joints": [True, False]}, "invalid state vector 'joints'"),
        ({"force": [np.nan]}, "invalid state vector 'force': expected finite numbers"),
        ({"force": [np.inf]}, "expected finite numbers"),
        ({"force": [1e300]}, "expected finite numbers"),
    ],
)
def test_an_invalid_vector_is_an_error(vectors: dict[str, Any], message: str) -> None:
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=message):
        RecordingPolicy(SPEC).act(make_observation(1, **vectors))


def test_an_observation_that_is_no_dict_is_an_error() -> None:
    image: Any = np.zeros((2, 2, 1), np.uint8)
    with pytest.raises(ValueError, match="invalid observation: expected a dict with front, wrist, joints, force, got"):
        RecordingPolicy(SPEC).act(image)


def test_an_action_that_is_not_finite_never_reaches_the_robot() -> None:
    policy = RecordingPolicy(SPEC)
    policy.action = np.nan
    with pytest.raises(RuntimeError, match="action is not finite"):
        policy.act(make_observation(1))


def test_appending_returns_a_new_array() -> None:
    frame = np.ones((1, 2), np.uint8)
    stack = append_frame(None, frame, 2)
    assert stack is not None
    next_stack = append_frame(stack, 2 * frame, 2)
    frame[:] = 9
    assert stack.tolist() == [[1, 1], [1, 1]]
    assert next_stack is not None
    assert next_stack.tolist() == [[1, 1], [2, 2]]
    assert append_frame(next_stack, None, 2) is None


def test_num_robots_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid num_robots: expected at least 1, got 0"):
        RecordingPolicy(SPEC, num_robots=0)
