from collections.abc import Iterator
from pathlib import Path

import pytest

from manyview.training import RunDir
from manyview.training.off_policy import OffPolicyTrainer
from tests.support.corrupted_run import CorruptedRun, make_config, make_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CorruptedRun]:
    """The run that copies are made of; nobody harms it."""
    folder = RunDir(tmp_path_factory.mktemp("victim") / "run")
    make_run(folder)
    trainer = OffPolicyTrainer(make_config())
    yield CorruptedRun(folder, trainer)
    trainer.close()


@pytest.fixture
def victim(whole: CorruptedRun, tmp_path: Path) -> CorruptedRun:
    return whole.copy_to(tmp_path / "run")
