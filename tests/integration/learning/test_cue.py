"""The cue task needs a memory: the last action must name what only the first frame showed."""

from typing import Any

import pytest

from tests.support.toys import train_and_evaluate

SETTINGS: dict[str, Any] = {"replay": {"batch_size": 120}}
EPISODE_STEPS = 4  # the maximum return of an episode is 1


@pytest.mark.long
def test_a_recurrent_representation_remembers_the_cue() -> None:
    changes = {**SETTINGS, "representation": {"sequence_length": 5}}
    assert EPISODE_STEPS * train_and_evaluate("toy/cue_continuous", "sac+dribo", frames=1_000, changes=changes) > 0.9


@pytest.mark.long
@pytest.mark.parametrize("method", ["sac+none", "sac+curl", "sac+mem+none"])
def test_a_policy_without_a_memory_guesses(method: str) -> None:
    # In 100 episodes, the share of a side has a standard deviation of 5 %; a guess gets that share.
    assert 0.3 < EPISODE_STEPS * train_and_evaluate("toy/cue_continuous", method, frames=1_000, changes=SETTINGS) < 0.7
