"""Faults of state vectors: frozen, late and NaN."""

from typing import Any

import numpy as np
import pytest

from manyview.envs import ContractError, Fault, make, restore, snapshot, wrap
from tests.support.state_vectors import NumberedEnv

ACTION = np.zeros(2, np.float32)


def collect_joint_numbers(*faults: Fault, steps: int = 6, stack: int = 1) -> list[list[float]]:
    """Return the first joint of each observation relative to the first observation.

    Within a stack the oldest is first.
    """
    env = wrap(NumberedEnv(max_steps=60), faults=faults, state_stack=stack)
    observations = [env.reset(seed=3)[0], *(env.step(ACTION)[0] for _ in range(steps - 1))]
    joints = [observation["joints"].reshape(stack, 3)[:, 0] for observation in observations]
    return [(numbers - joints[0][0]).tolist() for numbers in joints]


def test_a_frozen_vector_repeats_its_last_value_and_recovers() -> None:
    frame_faults = [Fault(view="joints", kind="frozen", at_step=2)]
    assert collect_joint_numbers(*frame_faults) == [[0], [1], [1], [3], [4], [5]]
    episode_faults = [Fault(view="joints", kind="frozen", lasts="episode", at_step=2)]
    assert collect_joint_numbers(*episode_faults) == [[0], [1], [1], [1], [1], [1]]


def test_a_late_vector_is_delayed_by_late_frames() -> None:
    fault = Fault(view="joints", kind="late", lasts="episode", at_step=0, late_frames=2)
    assert collect_joint_numbers(fault) == [[0], [0], [0], [1], [2], [3]]
    assert collect_joint_numbers(fault, stack=2)[-1] == [2, 3]


def test_other_vectors_and_views_do_not_change() -> None:
    env = wrap(NumberedEnv(max_steps=60), faults=[Fault(view="joints", kind="frozen", lasts="episode", at_step=0)])
    healthy_env = wrap(NumberedEnv(max_steps=60))
    env.reset(seed=3)
    healthy_env.reset(seed=3)
    observation, *_, info = env.step(ACTION)
    expected, *_ = healthy_env.step(ACTION)
    assert info["faults"] == {"joints": "frozen"}
    assert all(np.array_equal(observation[name], expected[name]) for name in expected if name != "joints")
    assert not np.array_equal(observation["joints"], expected["joints"])


@pytest.mark.parametrize("at_step", [0, 1])
def test_a_nan_vector_raises_an_error_with_its_name(at_step: int) -> None:
    env = wrap(NumberedEnv(), faults=[Fault(view="grip", kind="nan", at_step=at_step)])
    if at_step:
        env.reset(seed=3)
    with pytest.raises(ContractError, match="state vector 'grip': expected finite numbers"):
        env.step(ACTION) if at_step else env.reset(seed=3)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(view="joints", kind="black", at_step=0), "state vector 'joints': expected one of frozen, late, nan"),
        (Fault(view="side", kind="nan", at_step=0), "camera 'side': expected one of black"),
        (Fault(view="force", kind="late", at_step=0), r"expected one of \['side', 'joints', 'grip'\], got 'force'"),
    ],
)
def test_a_fault_that_does_not_fit_is_refused(fault: Fault, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrap(NumberedEnv(), faults=[fault])


def test_faults_of_vectors_are_restored_within_an_episode() -> None:
    faults = [
        Fault(view="clock", kind="late", lasts="episode", probability=0.3),
        Fault(view="goal", kind="frozen", lasts="episode", probability=0.2),
    ]
    options: dict[str, Any] = {"state": ["goal", "clock"], "faults": faults, "state_stack": 2}
    env, other_env = make("toy/told_goal", **options), make("toy/told_goal", **options)
    env.reset(seed=5)
    for _ in range(4):
        env.step(0)
    restore(other_env, snapshot(env))
    for _ in range(5):
        observation, expected = other_env.step(1)[0], env.step(1)[0]
        assert all(np.array_equal(observation[name], values) for name, values in expected.items())
