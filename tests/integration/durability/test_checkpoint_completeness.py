"""Whatever a session holds is in its checkpoint, is built anew from the settings, or is named here with a reason."""

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

MAY_DIFFER = {
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
"""Attributes that need not be as they were, and why."""


def forgotten(one: Any, other: Any) -> list[str]:
    """Paths to values that differ, or that only one of them has, and that may not."""
    before, now = collect_values(one), collect_values(other)
    absent = object()
    differing = [path for path in before.keys() | now.keys() if before.get(path, absent) != now.get(path, absent)]
    return sorted(path for path in differing if not any(re.fullmatch(allowed, path) for allowed in MAY_DIFFER))


@contextmanager
def two_sessions(folder: RunDir, **changes: Any) -> Iterator[tuple[Runner, Runner]]:
    """One that is at a checkpoint in mid-episode, and one that has just been resumed from it."""
    config = make_short_config(
        **{
            "schedule": {"frames": 90},
            "replay": {"capacity": 40},
            "logging": {"checkpoint_every_frames": 57},
            **changes,
        }
    )
    one = Runner(config, folder)
    advance_to(one, 57)
    one.lock.close()
    other = Runner(config, folder)
    try:
        yield one, other
    finally:
        abandon_runner(one)
        abandon_runner(other)


OF_ROLLOUTS = {
    r"\.trainer\._(last_batch|metrics|checkpoint_state)\b.*": "made anew in every rollout; the state is compared",
    r"\.trainer\.env\.envs\[\d+\]\.env\.env\._\w+([#[.].*)?": "the layer that warns of views: it warns anew",
    r"\.trainer\.env\._.*": "where gymnasium puts observations together",
    r"\.trainer\.env\..*_space(\[.*\])?\._np_random": "nobody draws from a space",
}
UNTIL_OVERWRITTEN = {r"\.trainer\.rollout\..*": "all of a rollout is written before it is read, but its first frames"}


@pytest.mark.quality("D1")
@pytest.mark.parametrize("method", ["ppo+mem", "ppo+re3", "ppo+ride"])
def test_every_value_of_a_session_with_rollouts_comes_back(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = make_short_rollout_config(method), RunDir(tmp_path / "run")
    one = Runner(config, folder)
    advance_to(one, 60)
    trainer: Any = one.trainer
    while not trainer.can_checkpoint:
        one.advance()
    one.writer.wait()
    one.lock.close()
    other = Runner(config, folder)
    try:
        assert len(collect_values(one)) > 500
        monkeypatch.setattr(__name__ + ".MAY_DIFFER", MAY_DIFFER | OF_ROLLOUTS | UNTIL_OVERWRITTEN)
        assert forgotten(one, other) == []
        for session in (one, other):
            session.trainer.advance()
            while not session.trainer.can_checkpoint:
                session.trainer.advance()
        monkeypatch.setattr(__name__ + ".MAY_DIFFER", MAY_DIFFER | OF_ROLLOUTS)
        assert forgotten(one, other) == [], "and a rollout later"
    finally:
        abandon_runner(one)
        abandon_runner(other)


METHODS = ("drqv2+mem", "sac+mem", "drqv2+curl+re3", "sac+none")


@pytest.mark.quality("D1")
@pytest.mark.parametrize("method", METHODS)
def test_every_value_of_a_session_comes_back(method: str, tmp_path: Path) -> None:
    with two_sessions(RunDir(tmp_path / "run"), method=method) as sessions:
        assert len(collect_values(sessions[0])) > 500
        assert forgotten(*sessions) == []
        for _ in range(5):
            for session in sessions:
                session.trainer.advance()
        assert forgotten(*sessions) == [], "and five steps later"


@pytest.mark.quality("D1")
def test_every_value_of_failing_cameras_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault(view="row", kind=kind, lasts="episode", probability=0.05) for kind in get_args(FaultKind)]
    monkeypatch.setattr(factory, "make", lambda task, **options: make(task, **{**options, "faults": faults}))
    with two_sessions(RunDir(tmp_path / "run")) as sessions:
        assert forgotten(*sessions) == []


class Forgetful:
    """Holds what nobody registered."""

    def __init__(self) -> None:
        self.kept = {"mean": torch.zeros(2)}
        self.calls, self.numbers = 0, count()
        self.rng = np.random.default_rng(0)
        self.generator = torch.Generator()
        self.__dict__["a name"] = [1.0]

    def change(self, what: str) -> None:
        match what:
            case "tensor":
                self.kept["mean"] += 1
            case "counter":
                self.calls += 1
            case "iterator":
                next(self.numbers)
            case "numpy":
                self.rng.random()
            case "torch":
                torch.rand(1, generator=self.generator)
            case "new":
                self.kept["std"] = torch.ones(2)


@pytest.mark.parametrize("what", ["tensor", "counter", "iterator", "numpy", "torch", "new"])
def test_a_forgotten_value_is_found(what: str) -> None:
    one, other = ({"agent": [Forgetful()]} for _ in range(2))
    assert forgotten(one, other) == []
    other["agent"][0].change(what)
    assert len(forgotten(one, other)) == 1


def test_every_exception_is_still_needed(tmp_path: Path) -> None:
    """What no longer exists comes off the list."""
    with two_sessions(RunDir(tmp_path / "run")) as (one, other):
        paths = collect_values(one).keys() | collect_values(other).keys()
    assert [allowed for allowed in MAY_DIFFER if not any(re.fullmatch(allowed, path) for path in paths)] == []


@pytest.mark.quality("D1")
def test_a_state_that_is_being_written_does_not_change_while_training_goes_on(tmp_path: Path) -> None:
    session = Runner(make_short_config(), RunDir(tmp_path / "run"))
    advance_to(session, 35)
    state = session.trainer.get_state()
    then = deepcopy(state)
    while session.trainer.counters.frames < 60:
        session.advance()
    abandon_runner(session)
    assert compare_trees(state, then) == []


@pytest.mark.quality("D1")
def test_nobody_draws_from_a_generator_of_the_process(tmp_path: Path) -> None:
    """Those are not in the checkpoint."""
    session = Runner(make_short_config(), RunDir(tmp_path / "run"))
    before = [torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()]
    session.run()
    session.close()
    assert compare_trees(before, [torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()]) == []
