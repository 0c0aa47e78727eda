"""Power losses at random file operations lose unflushed writes, and the run ends unchanged."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from benchmarks.file_operations import Operation, intercept_operations
from benchmarks.power_loss import Disk, power_losses
from benchmarks.run_comparison import compare_runs
from manyview.report.runs import summarize_run
from manyview.training import RunDir, checkpoint, run
from tests.support.runners import make_quick_config

CONFIG = make_quick_config()
RUN_PATH = Path("new") / "folders" / "run"
"""Path of the run on a disk; the names of its parent directories must be flushed too."""
NUM_LOSSES, NUM_LOSSES_FAST = 25, 3

POWER_LOSS = pytest.mark.attack("A power loss at any moment costs no checkpoint, and the run ends bit-identical")


@dataclass(frozen=True)
class ReferenceRun:
    run_dir: RunDir
    operations: int
    """File operations of the run."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ReferenceRun:
    disk = tmp_path_factory.mktemp("disk")
    operations: list[Operation] = []
    with intercept_operations([disk], lambda operation: operations.append(operation)):
        run(CONFIG, RunDir(disk))
    return ReferenceRun(RunDir(disk), len(operations))


def cut_power(reference: ReferenceRun, directory: Path, num_losses: int, luck: Random | None) -> dict[str, list[str]]:
    """Run with power losses, resume after each, and return the differences by operation.

    With `luck`, a random part of the unflushed writes survives.
    """
    # One in each equal part of the run, and one at its end.
    random, interval = Random(num_losses), reference.operations / (num_losses - 1)  # noqa: S311
    moments = {int((number + random.random()) * interval) for number in range(num_losses - 1)}
    disk, copies = directory / "disk", directory / "images"
    disk.mkdir()
    copies.mkdir()
    with power_losses(disk, moments, copies, luck):
        run(CONFIG, RunDir(disk))
    failures = {}
    for copy in sorted(copies.iterdir(), key=lambda path: int(path.name)):
        run_dir = RunDir(copy)
        if run_dir.is_finished:
            assert summarize_run(run_dir.path).state == "finished"
        else:
            run(CONFIG, run_dir)
        if differences := compare_runs(reference.run_dir, run_dir):
            failures[copy.name] = differences
    assert len(list(copies.iterdir())) == num_losses
    return failures


@POWER_LOSS
@pytest.mark.quality("D2")
def test_a_power_loss_at_a_few_operations_changes_nothing(reference: ReferenceRun, tmp_path: Path) -> None:
    assert cut_power(reference, tmp_path, NUM_LOSSES_FAST, luck=None) == {}


@POWER_LOSS
@pytest.mark.long
@pytest.mark.quality("D2")
@pytest.mark.parametrize("is_lucky", [False, True], ids=["nothing unflushed survives", "some of it survives"])
def test_a_power_loss_at_any_operation_changes_nothing(reference: ReferenceRun, tmp_path: Path, is_lucky: bool) -> None:
    assert cut_power(reference, tmp_path, NUM_LOSSES, Random(1) if is_lucky else None) == {}  # noqa: S311


@POWER_LOSS
@pytest.mark.quality("D2")
def test_existing_checkpoints_survive_a_power_loss_during_the_next_save(tmp_path: Path) -> None:
    """A run that restarts would also end unchanged, so the tests above do not show it."""
    root, losses = tmp_path / "disk", []
    root.mkdir()
    disk, run_dir = Disk(root), RunDir(root / RUN_PATH)

    def handle(operation: Operation) -> None:
        if operation.name == "rename" and checkpoint.NAME_PATTERN.fullmatch(operation.path.stem):
            existing = [path.name for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)]
            disk.write_to(copy := tmp_path / f"{operation.path.stem}", None)
            surviving = [path.name for path in checkpoint.list_checkpoints(RunDir(copy / RUN_PATH).checkpoints_dir)]
            if not set(existing) <= set(surviving):
                losses.append((operation.path.name, existing, surviving))
        if operation.name == "fsync":
            disk.fsync(operation.path)

    with intercept_operations([root], handle):
        run(CONFIG, run_dir)
    disk.close()
    assert losses == []
    assert (tmp_path / "000000060").exists()


def test_unflushed_writes_are_lost(tmp_path: Path) -> None:
    """The simulated disk loses writes, so the tests above can fail."""
    root = tmp_path / "disk"
    (root / "folder").mkdir(parents=True)
    (root / "file").write_text("old")
    disk = Disk(root)
    for path in (root / "file", root / "folder"):
        disk.fsync(path)
    (root / "file").write_text("new")
    (root / "folder" / "lost").touch()
    (root / "lost").touch()
    (root / "file").rename(root / "renamed")
    disk.write_to(tmp_path / "left")
    disk.write_to(tmp_path / "lucky", Random(0))  # noqa: S311
    disk.close()
    assert {str(path.relative_to(tmp_path / "left")) for path in (tmp_path / "left").rglob("*")} == {"file", "folder"}
    assert (tmp_path / "left" / "file").read_text() == "old"
    assert list((tmp_path / "lucky").rglob("*"))
