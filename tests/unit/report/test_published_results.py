"""Published results that curves are compared with."""

import json
import os
from pathlib import Path
from statistics import fmean

import pytest

from manyview.cli.main import main
from manyview.envs.registration import list_tasks
from manyview.report.published_results import read_published_results
from tests.support.run_dirs import write_run_dir

HOSTILE_FILE = pytest.mark.attack(
    "a file of published figures that is deep, huge, infinite or no file is refused in a line"
)
PUBLISHED_FILE = Path(__file__).parents[3] / "results" / "published.json"


def test_published_results_name_known_tasks_and_their_sources() -> None:
    rows = read_published_results(PUBLISHED_FILE)
    assert {row.task for row in rows} <= list_tasks().keys()
    assert {row.method for row in rows} == {"curl", "drqv2", "rad+re3"}
    assert all("@" in row.source for row in rows)  # a repository at a commit


def test_published_results_have_the_published_means_at_100k_frames() -> None:
    means = {
        (row.task, row.method): fmean(row.returns)
        for row in read_published_results(PUBLISHED_FILE)
        if row.frames == 100_000
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
def test_an_invalid_file_is_refused_with_the_expected_form(content: str, tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r'is invalid: expected published results as \{"results"'):
        read_published_results(path)


ROW = {"method": "a", "suite": "dmc", "task": "b", "frames": 1, "returns": [1.0], "source": "c"}


def format_results(**changes: object) -> str:
    """Return the text of a file with one result, changed by `changes`."""
    return json.dumps({"results": [{**ROW, **changes}]})


@HOSTILE_FILE
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    "content",
    [
        '{"results": ' * 100_000,
        '{"results": {"a": 1}}',
        '{"results": NaN}',
        json.dumps({"results": [ROW] * 2000}),
        format_results(returns=[float("nan")]),
        format_results(returns=[10**400]),
        format_results(returns=[True]),
        format_results(returns=[1.0] * 200),
        format_results(returns="12"),
        format_results(returns={"1": 2}),
        format_results(frames=float("inf")),
        format_results(frames=10**400),
        format_results(frames=True),
        format_results(frames="1"),
        format_results(views=[1]),
        format_results(views=-1),
        " " * 5_000_000,
    ],
    ids=lambda content: content[:60],
)
def test_hostile_results_are_refused_in_a_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "published.json").write_text(content)
    run, out = write_run_dir(tmp_path / "run", [1.0]), tmp_path / "a.png"
    assert main(["plot", str(run), "--out", str(out), "--published", str(tmp_path / "published.json")]) == 2
    assert capsys.readouterr().err[:-1].isprintable()
    assert not out.exists()


@HOSTILE_FILE
@pytest.mark.quality("X5")
def test_results_from_a_pipe_or_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(OSError, match="expected a file"):
            read_published_results(tmp_path / name)


@HOSTILE_FILE
@pytest.mark.quality("X6")
def test_names_of_published_results_are_printable(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(format_results(method="a\x1b[2J\nb", source="\ud800", task="\r"))
    (row,) = read_published_results(path)
    assert all(text.isprintable() for text in (row.method, row.task, row.source))


def test_a_link_to_published_results_is_followed(tmp_path: Path) -> None:
    """The user names the file, so it may be a link."""
    (tmp_path / "link.json").symlink_to(PUBLISHED_FILE)
    assert read_published_results(tmp_path / "link.json") == read_published_results(PUBLISHED_FILE)


def test_a_row_without_returns_is_refused(tmp_path: Path) -> None:
    row = {"method": "a", "suite": "dmc", "task": "b", "frames": 1, "returns": [], "source": "c"}
    path = tmp_path / "published.json"
    path.write_text(json.dumps({"results": [row]}))
    with pytest.raises(ValueError, match="no returns"):
        read_published_results(path)
