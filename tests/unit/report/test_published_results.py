"""Published figures that curves are drawn beside."""

import json
import os
from pathlib import Path
from statistics import fmean

import pytest

from manyview.cli.main import main
from manyview.envs.registration import list_tasks
from manyview.report.published_results import read_published_results
from tests.support.run_dirs import write_run_dir

HOSTILE = pytest.mark.attack("a file of published figures that is deep, huge, infinite or no file is refused in a line")
FILE = Path(__file__).parents[3] / "results" / "published.json"


def test_ours_name_tasks_there_are_and_their_sources() -> None:
    rows = read_published_results(FILE)
    assert {row.task for row in rows} <= list_tasks().keys()
    assert {row.method for row in rows} == {"curl", "drqv2", "rad+re3"}
    assert all("@" in row.source for row in rows)  # a repository at a commit


def test_ours_have_the_means_that_were_published_at_100k_frames() -> None:
    means = {
        (row.task, row.method): fmean(row.returns) for row in read_published_results(FILE) if row.frames == 100_000
    }
    assert {name: round(mean) for name, mean in means.items()} == {
        ("dmc/ball_in_cup_catch", "curl"): 805,
        ("dmc/ball_in_cup_catch", "drqv2"): 359,
        ("dmc/ball_in_cup_catch", "rad+re3"): 899,
        ("dmc/cartpole_swingup", "rad+re3"): 619,
        ("dmc/cartpole_swingup_sparse", "curl"): 0,
        ("dmc/cartpole_swingup_sparse", "rad+re3"): 94,
        ("dmc/finger_spin", "rad+re3"): 928,
        ("dmc/hopper_stand", "rad+re3"): 533,
        ("dmc/pendulum_swingup", "curl"): 38,
        ("dmc/pendulum_swingup", "drqv2"): 235,
        ("dmc/pendulum_swingup", "rad+re3"): 817,
    }


@pytest.mark.parametrize("content", ["", "[]", '{"results": [{"method": "drqv2"}]}', '{"results": [1]}'])
def test_another_file_is_refused_with_the_form_it_should_have(content: str, tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r'is invalid: expected published results as \{"results"'):
        read_published_results(path)


ROW = {"method": "a", "suite": "dmc", "task": "b", "frames": 1, "returns": [1.0], "source": "c"}


def results(**changes: object) -> str:
    return json.dumps({"results": [{**ROW, **changes}]})


@HOSTILE
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    "content",
    [
        '{"results": ' * 100_000,
        '{"results": {"a": 1}}',
        '{"results": NaN}',
        json.dumps({"results": [ROW] * 2000}),
        results(returns=[float("nan")]),
        results(returns=[10**400]),
        results(returns=[True]),
        results(returns=[1.0] * 200),
        results(returns="12"),
        results(returns={"1": 2}),
        results(frames=float("inf")),
        results(frames=10**400),
        results(frames=True),
        results(frames="1"),
        results(views=[1]),
        results(views=-1),
        " " * 5_000_000,
    ],
    ids=lambda content: content[:60],
)
def test_hostile_figures_are_refused_in_a_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "published.json").write_text(content)
    run, out = write_run_dir(tmp_path / "run", [1.0]), tmp_path / "a.png"
    assert main(["plot", str(run), "--out", str(out), "--published", str(tmp_path / "published.json")]) == 2
    assert capsys.readouterr().err[:-1].isprintable()
    assert not out.exists()


@HOSTILE
@pytest.mark.quality("X5")
def test_figures_from_a_pipe_or_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(OSError, match="expected a file"):
            read_published_results(tmp_path / name)


@HOSTILE
@pytest.mark.quality("X6")
def test_names_of_figures_are_inert(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(results(method="a\x1b[2J\nb", source="\ud800", task="\r"))
    (row,) = read_published_results(path)
    assert all(text.isprintable() for text in (row.method, row.task, row.source))


def test_a_link_to_figures_is_followed(tmp_path: Path) -> None:
    """Whoever names a file may name it by a link."""
    (tmp_path / "link.json").symlink_to(FILE)
    assert read_published_results(tmp_path / "link.json") == read_published_results(FILE)


def test_a_row_without_returns_is_refused(tmp_path: Path) -> None:
    row = {"method": "a", "suite": "dmc", "task": "b", "frames": 1, "returns": [], "source": "c"}
    path = tmp_path / "published.json"
    path.write_text(json.dumps({"results": [row]}))
    with pytest.raises(ValueError, match="no returns"):
        read_published_results(path)
