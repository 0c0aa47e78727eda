"""The power fails at random file operations: what was not flushed is gone, and the run ends as if it had not."""

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
WITHIN = Path("new") / "folders" / "run"
"""Of a disk: their names must be flushed too."""
ALL, FEW = 25, 3

HOLDS = pytest.mark.attack("A power loss at any moment costs no checkpoint, and the run ends bit-identical")


@dataclass(frozen=True)
class Undisturbed:
    folder: RunDir
    operations: int
    """File operations of the run."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    disk = tmp_path_factory.mktemp("disk")
    operations: list[Operation] = []
    with intercept_operations([disk], lambda operation: operations.append(operation)):
        run(CONFIG, RunDir(disk))
    return Undisturbed(RunDir(disk), len(operations))


def cut_power(undisturbed: Undisturbed, folder: Path, times: int, luck: Random | None) -> dict[str, list[str]]:
    """Run, cut the power `times` times and go on after each; what is not as in an undisturbed run, by operation."""
    # One in each equal part of the run, and one when all is done.
    random, part = Random(times), undisturbed.operations / (times - 1)  # noqa: S311
    moments = {int((number + random.random()) * part) for number in range(times - 1)}
    disk, images = folder / "disk", folder / "images"
    disk.mkdir()
    images.mkdir()
    with power_losses(disk, moments, images, luck):
        run(CONFIG, RunDir(disk))
    wrong = {}
    for image in sorted(images.iterdir(), key=lambda path: int(path.name)):
        left = RunDir(image)
        if left.is_finished:
            assert summarize_run(left.path).state == "finished"
        else:
            run(CONFIG, left)
        if found := compare_runs(undisturbed.folder, left):
            wrong[image.name] = found
    assert len(list(images.iterdir())) == times
    return wrong


@HOLDS
@pytest.mark.quality("D2")
def test_a_power_loss_at_a_few_operations_changes_nothing(undisturbed: Undisturbed, tmp_path: Path) -> None:
    assert cut_power(undisturbed, tmp_path, FEW, luck=None) == {}


@HOLDS
@pytest.mark.long
@pytest.mark.quality("D2")
@pytest.mark.parametrize("lucky", [False, True], ids=["nothing unflushed survives", "some of it survives"])
def test_a_power_loss_at_any_operation_changes_nothing(undisturbed: Undisturbed, tmp_path: Path, lucky: bool) -> None:
    assert cut_power(undisturbed, tmp_path, ALL, Random(1) if lucky else None) == {}  # noqa: S311


@HOLDS
@pytest.mark.quality("D2")
def test_at_each_checkpoint_all_before_it_and_the_names_above_it_are_on_the_disk(tmp_path: Path) -> None:
    """A run that starts over would end the same: here it must not have to."""
    root, lost = tmp_path / "disk", []
    root.mkdir()
    disk, folder = Disk(root), RunDir(root / WITHIN)

    def meet(operation: Operation) -> None:
        if operation.name == "rename" and checkpoint.NAME_PATTERN.fullmatch(operation.path.stem):
            written = [path.name for path in checkpoint.list_checkpoints(folder.checkpoints_dir)]
            disk.write_to(image := tmp_path / f"{operation.path.stem}", None)
            left = [path.name for path in checkpoint.list_checkpoints(RunDir(image / WITHIN).checkpoints_dir)]
            if not set(written) <= set(left):
                lost.append((operation.path.name, written, left))
        if operation.name == "fsync":
            disk.fsync(operation.path)

    with intercept_operations([root], meet):
        run(CONFIG, folder)
    disk.close()
    assert lost == []
    assert (tmp_path / "000000060").exists()


def test_what_is_not_flushed_is_lost(tmp_path: Path) -> None:
    """The tests above could not fail otherwise."""
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
