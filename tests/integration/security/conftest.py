"""An intact run and copies for tests to corrupt."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from manyview.training import RunDir
from manyview.training.off_policy import OffPolicyTrainer
from tests.support.corrupted_run import CorruptedRun, make_config, make_run


@pytest.fixture(scope="session")
def intact_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CorruptedRun]:
    """Yield the run that tests copy; none may change it."""
    run_dir = RunDir(tmp_path_factory.mktemp("victim") / "run")
    make_run(run_dir)
    trainer = OffPolicyTrainer(make_config())
    yield CorruptedRun(run_dir, trainer)
    trainer.close()


@pytest.fixture
def corrupted_run(intact_run: CorruptedRun, tmp_path: Path) -> CorruptedRun:
    """Return a copy of the intact run that the test may corrupt."""
    return intact_run.copy_to(tmp_path / "run")
