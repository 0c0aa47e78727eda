"""All state of a runner is in its checkpoint, rebuilt from the config, or listed here with a reason."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from benchmarks.run_comparison import compare_trees
from manyview.envs import Fault, make
from manyview.envs.wrappers.faults import FaultKind
from manyview.training import RunDir, factory
from manyview.training.runner import Runner
from tests.support.object_graph import collect_values
from tests.support.runners import abandon_runner, advance_to
from tests.support.runs import make_short_config, make_short_rollout_config

pytestmark = pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")

ALLOWED_DIFFERENCES = {
    r"\._start_s": "seconds",
    r"\._resume_info\b.*": "what the session went on from",
    r"\.loggers\..*|\.(metrics_logger|lock|writer)\..*": "files, threads; the length of the records is saved",
    r"\.manifest\b.*": "of a process: its number and when it began",
    r"\.evaluator\b.*": "every evaluation begins with seeded resets",
    r"\._checkpoint_state\b.*": "the runner state of the last edge, with its seconds; it is in the checkpoint",
    r"\.trainer\.last_batch\b.*": "looked at only after an update, which replaces it",
    r"\.trainer\.sampler\._(buffers|pending|prefetcher|next_views_executor)\b.*": "buffers of a batch, and threads",
    r".*\.grad": "an update begins without gradients",
    r"\.trainer\.env\.env\.env\._\w+([#[.].*)?": "the layer that warns of views: it warns anew",
    r"\.trainer\.env\..*\._np_random_seed": "a note of gymnasium's; the generator itself is restored",
    r"\.trainer\.update_bytes": "measured at the begin of a process",
}
"""Patterns of the attributes that may differ after a resume, and the reasons."""


def find_differences(first: Any, second: Any) -> list[str]:
    """Return the paths of values that differ or are missing on one side, except allowed ones."""
    first_values, second_values = collect_values(first), collect_values(second)
    missing = object()
    differences = [
        path
        for path in first_values.keys() | second_values.keys()
        if first_values.get(path, missing) != second_values.get(path, missing)
    ]
    return sorted(
        path for path in differences if not any(re.fullmatch(allowed, path) for allowed in ALLOWED_DIFFERENCES)
    )


@contextmanager
def open_runner_pair(run_dir: RunDir, **changes: Any) -> Iterator[tuple[Runner, Runner]]:
    """Yield a runner at a checkpoint in mid-episode, and one resumed from that checkpoint."""
    config = make_short_config(
        **{
            "schedule": {"frames": 90},
            "replay": {"capacity": 40},
            "logging": {"checkpoint_every_frames": 57},
            **changes,
        }
    )
    original = Runner(config, run_dir)
    advance_to(original, 57)
    original.lock.close()
    resumed = Runner(config, run_dir)
    try:
        yield original, resumed
    finally:
        abandon_runner(original)
        abandon_runner(resumed)


ROLLOUT_DIFFERENCES = {
    r"\.trainer\._(last_batch|metrics|checkpoint_state)\b.*": "made anew in every rollout; the state is compared",
    r"\.trainer\.env\.envs\[\d+\]\.env\.env\._\w+([#[.].*)?": "the layer that warns of views: it warns anew",
    r"\.trainer\.env\._.*": "where gymnasium puts observations together",
    r"\.trainer\.env\..*_space(\[.*\])?\._np_random": "nobody draws from a space",
}
ROLLOUT_BUFFER_DIFFERENCES = {
    r"\.trainer\.rollout\..*": "all of a rollout is written before it is read, but its first frames"
}


@pytest.mark.quality("D1")
@pytest.mark.parametrize("method", ["ppo+mem", "ppo+re3", "ppo+ride"])
def test_every_value_of_a_runner_with_rollouts_is_restored(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run_dir = make_short_rollout_config(method), RunDir(tmp_path / "run")
    original = Runner(config, run_dir)
    advance_to(original, 60)
    trainer: Any = original.trainer
    while not trainer.can_checkpoint:
        original.advance()
    original.writer.wait()
    original.lock.close()
    resumed = Runner(config, run_dir)
    try:
        assert len(collect_values(original)) > 500
        monkeypatch.setattr(
            __name__ + ".ALLOWED_DIFFERENCES", ALLOWED_DIFFERENCES | ROLLOUT_DIFFERENCES | ROLLOUT_BUFFER_DIFFERENCES
        )
        assert find_differences(original, resumed) == []
        for runner in (original, resumed):
            runner.trainer.advance()
            while not runner.trainer.can_checkpoint:
                runner.trainer.advance()
        monkeypatch.setattr(__name__ + ".ALLOWED_DIFFERENCES", ALLOWED_DIFFERENCES | ROLLOUT_DIFFERENCES)
        assert find_differences(original, resumed) == [], "and a rollout later"
    finally:
        abandon_runner(original)
        abandon_runner(resumed)


METHODS = ("drqv2+mem", "sac+mem", "drqv2+curl+re3", "sac+none")


@pytest.mark.quality("D1")
@pytest.mark.parametrize("method", METHODS)
def test_every_value_of_a_runner_is_restored(method: str, tmp_path: Path) -> None:
    with open_runner_pair(RunDir(tmp_path / "run"), method=method) as runners:
        assert len(collect_values(runners[0])) > 500
        assert find_differences(*runners) == []
        for _ in range(5):
            for runner in runners:
                runner.trainer.advance()
        assert find_differences(*runners) == [], "and five steps later"


@pytest.mark.quality("D1")
def test_every_value_of_failing_cameras_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault(view="row", kind=kind, lasts="episode", probability=0.05) for kind in get_args(FaultKind)]
    monkeypatch.setattr(factory, "make", lambda task, **options: make(task, **{**options, "faults": faults}))
    with open_runner_pair(RunDir(tmp_path / "run")) as runners:
        assert find_differences(*runners) == []


class UnregisteredState:
    """Object with state that no checkpoint contains."""

    def __init__(self) -> None:
        self.tensors = {"mean": torch.zeros(2)}
        self.calls, self.numbers = 0, count()
        self.rng = np.random.default_rng(0)
        self.generator = torch.Generator()
        self.__dict__["a name"] = [1.0]

    def change(self, kind: str) -> None:
        match kind:
            case "tensor":
                self.tensors["mean"] += 1
            case "counter":
                self.calls += 1
            case "iterator":
                next(self.numbers)
            case "numpy":
                self.rng.random()
            case "torch":
                torch.rand(1, generator=self.generator)
            case "new":
                self.tensors["std"] = torch.ones(2)


@pytest.mark.parametrize("kind", ["tensor", "counter", "iterator", "numpy", "torch", "new"])
def test_a_difference_is_found(kind: str) -> None:
    first, second = ({"agent": [UnregisteredState()]} for _ in range(2))
    assert find_differences(first, second) == []
    second["agent"][0].change(kind)
    assert len(find_differences(first, second)) == 1


def test_every_allowed_difference_is_still_needed(tmp_path: Path) -> None:
    """Every pattern of allowed differences still matches an attribute."""
    with open_runner_pair(RunDir(tmp_path / "run")) as (original, resumed):
        paths = collect_values(original).keys() | collect_values(resumed).keys()
    assert [allowed for allowed in ALLOWED_DIFFERENCES if not any(re.fullmatch(allowed, path) for path in paths)] == []


@pytest.mark.quality("D1")
def test_a_state_that_is_being_written_does_not_change_while_training_goes_on(tmp_path: Path) -> None:
    runner = Runner(make_short_config(), RunDir(tmp_path / "run"))
    advance_to(runner, 35)
    state = runner.trainer.get_state()
    state_copy = deepcopy(state)
    while runner.trainer.counters.frames < 60:
        runner.advance()
    abandon_runner(runner)
    assert compare_trees(state, state_copy) == []


@pytest.mark.quality("D1")
def test_a_run_leaves_the_global_generators_unchanged(tmp_path: Path) -> None:
    """The global generators are not in the checkpoint."""
    runner = Runner(make_short_config(), RunDir(tmp_path / "run"))
    before = [torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()]
    runner.run()
    runner.close()
    assert compare_trees(before, [torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()]) == []
