from collections.abc import Iterator
from pathlib import Path

import pytest

from manyview.training import RunDir
from manyview.training.off_policy import OffPolicyTrainer
from tests.support.corrupted_run import Victim, config, make_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """The run that copies are made of; nobody harms it."""
    folder = RunDir(tmp_path_factory.mktemp("victim") / "run")
    make_run(folder)
    trainer = OffPolicyTrainer(config())
    yield Victim(folder, trainer)
    trainer.close()


@pytest.fixture
def victim(whole: Victim, tmp_path: Path) -> Victim:
    return whole.copy(tmp_path / "run")
