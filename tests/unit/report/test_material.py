"""Inputs of a report: diagnostics, videos, camera figures, settings and versions."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.report import material
from manyview.report.camera_file import CAMERAS_FILE, read_camera_figures, write_camera_file
from manyview.report.comparison import (
    ABSENT,
    format_value,
    leave_out_parts,
    list_differences,
    list_settings,
    list_versions,
)
from manyview.report.material import find_videos, read_diagnostics, read_material
from manyview.report.runs import METRICS_FILE, BrokenRunError
from manyview.report.text_chart import BOTH, HEIGHT, MARKERS, WIDTH, draw_text_chart
from tests.support.run_dirs import format_record, write_run_dir
from tests.unit.report.test_page import make_material


def append_lines(run_path: Path, *lines: str) -> None:
    """Append lines to the metrics file of a run."""
    with (run_path / METRICS_FILE).open("a") as file:
        file.writelines(lines)


def test_diagnostics_are_read_by_name(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run")
    append_lines(
        run_path,
        format_record("train", 100, **{"std/front": 0.5, "beta": 0.1, "critic_loss": 3.0, "health": "healthy: all"}),
        format_record("evaluation", 150, beta=7.0, note="train"),
        format_record("train", 200, **{"std/front": None, "beta": 0.2, "rank/front": "x"}),
    )
    series = read_diagnostics(run_path)
    assert set(series) == {"std/front", "beta"}
    assert [part.tolist() for part in series["beta"]] == [[100, 200], [0.1, 0.2]]
    assert [part.tolist() for part in series["std/front"]] == [[100], [0.5]]


def test_a_frame_that_was_reached_twice_has_its_later_value(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run")
    append_lines(
        run_path, *(format_record("train", frames, beta=beta) for frames, beta in ((100, 1.0), (200, 2.0), (100, 3.0)))
    )
    assert [part.tolist() for part in read_diagnostics(run_path)["beta"]] == [[100, 200], [3.0, 2.0]]


def test_long_runs_are_thinned_evenly(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run")
    append_lines(run_path, *(format_record("train", frames, beta=0.1) for frames in range(5000)))
    frames, _ = read_diagnostics(run_path)["beta"]
    assert material.MAX_RECORDS / 2 < len(frames) <= material.MAX_RECORDS
    assert len(set(np.diff(frames))) == 1
    assert frames[0] == 0


def test_foreign_diagnostics_are_bounded(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run")
    append_lines(run_path, format_record("train", 1, **{f"std/{number}": 1.0 for number in range(1000)}))
    append_lines(
        run_path,
        format_record("train", 2, **{"std/" + "x" * 200: 1.0}),
        '{"kind": "train", "frames": "soon", "beta": 1}\n',
    )
    assert len(read_diagnostics(run_path)) == material.MAX_SERIES


def test_videos_are_found_in_the_order_of_their_frames(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run")
    (run_path / "videos").mkdir()
    for name in ("000000900.mp4", "000001000.mp4", "0.mp4", "x.mp4", "1.gif", "2.mp4.unfinished", "²3.mp4"):
        (run_path / "videos" / name).write_bytes(b"x")
    assert [video.frames for video in find_videos(run_path)] == [0, 900, 1000]


def test_videos_behind_links_and_pipes_are_left_out(tmp_path: Path) -> None:
    run_path, other = write_run_dir(tmp_path / "run"), write_run_dir(tmp_path / "other")
    (other / "videos").mkdir()
    (other / "videos" / "1.mp4").write_bytes(b"x")
    (run_path / "videos").symlink_to(other / "videos")
    assert find_videos(run_path) == []
    (run_path / "videos").unlink()
    assert find_videos(run_path) == []
    (run_path / "videos").mkdir()
    (run_path / "videos" / "1.mp4").symlink_to("/dev/zero")
    os.mkfifo(run_path / "videos" / "2.mp4")
    (run_path / "videos" / "3.mp4").mkdir()
    assert find_videos(run_path) == []


def test_the_material_of_a_run_has_all_fields(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run", [0.0, 3.0], seed=7, end="failed", manifest={"versions": {"torch": "2"}})
    run_material = read_material(run_path, name="a/run")
    assert (run_material.name, run_material.state, run_material.last_return, run_material.seconds) == (
        "a/run",
        "failed",
        3.0,
        10.0,
    )
    assert run_material.versions == {"torch": "2"}
    assert run_material.settings["agent.name"] == "drqv2"
    assert run_material.curve.x.tolist() == [0, 1000]
    assert run_material.command.startswith("manyview train ")


def test_a_run_of_another_version_has_a_command_too(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run", [1.0], env={"unknown": 1})
    assert read_material(run_path, name="run").command == "manyview train toy/identity_continuous --config config.json"


def test_a_run_without_records_is_broken(tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run", [1.0])
    (run_path / METRICS_FILE).unlink()
    with pytest.raises(BrokenRunError, match=r"metrics\.jsonl does not exist"):
        read_material(run_path, name="run")


def make_camera_report(**changes: Any) -> dict[str, Any]:
    """Return the plain camera report of two cameras, with changes."""
    subsets = {(): [0.0, 1.0], ("a",): [2.0, 2.0], ("b",): [1.0, 3.0], ("a", "b"): [8.0, 10.0]}
    plain = {
        "frames": 100,
        "subsets": [{"cameras": list(names), "returns": returns} for names, returns in subsets.items()],
        "shapley": {"a": [4.5, 4.0, 5.0], "b": [4.0, 3.0, 5.0]},
    }
    return {**plain, **changes}


def test_camera_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_camera_figures(tmp_path) == []
    write_camera_file(tmp_path / CAMERAS_FILE, [make_camera_report()])
    (figures,) = read_camera_figures(tmp_path)
    assert (figures.frames, figures.episodes) == (100, 2)
    assert figures.shapley["a"].low == 4.0
    assert figures.losses["a"].mean == 7.0  # (8 - 1 + 10 - 3) / 2
    assert figures.losses["b"].mean == 7.0
    assert figures.subsets[()].mean == 0.5


@pytest.mark.parametrize(
    "report",
    [
        make_camera_report(subsets=[]),
        make_camera_report(subsets=[{"cameras": ["a"], "returns": []}]),
        make_camera_report(subsets=[{"cameras": ["a"], "returns": [True]}]),
        make_camera_report(subsets=[{"cameras": 3, "returns": [1.0]}]),
        make_camera_report(subsets=[{"cameras": ["a"], "returns": [1.0] * 10_001}]),
        make_camera_report(shapley={"a": [1.0, 2.0]}),
        make_camera_report(shapley=[1]),
        make_camera_report(frames="many"),
        [],
        None,
    ],
)
def test_invalid_camera_figures_are_named_and_the_run_is_read(report: object, tmp_path: Path) -> None:
    run_path = write_run_dir(tmp_path / "run", [1.0])
    (run_path / CAMERAS_FILE).write_text(json.dumps({"reports": [report]}))
    run_material = read_material(run_path, name="run")
    assert run_material.cameras == ()
    assert run_material.reason is not None
    assert run_material.reason.startswith(CAMERAS_FILE)


def test_camera_figures_behind_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / CAMERAS_FILE).symlink_to("/dev/zero")
    with pytest.raises(BrokenRunError, match="symbolic link"):
        read_camera_figures(tmp_path)


def test_settings_are_flat_and_hide_paths() -> None:
    config = {
        "task": "toy/a",
        "seed": 1,
        "preset": "/home/me/own.toml,minute",
        "replay": {"directory": "/home/me/replay", "demonstrations": "/home/me/shown", "capacity": 5},
        "logging": {"entity": "me", "project": "robots"},
        "schedule": {"initial_run": "/home/me/first"},
        "views": ["a"],
    }
    assert list_settings(config) == {
        "preset": "own,minute",
        "replay.directory": "replay",
        "replay.demonstrations": "shown",
        "logging.project": "robots",
        "replay.capacity": 5,
        "schedule.initial_run": "first",
        "views": ["a"],
    }


def test_versions_leave_the_host_out() -> None:
    manifest = {"versions": {"torch": "2"}, "host": "h", "pid": 1, "commit": "abc", "renderer": None, "device": "cpu"}
    assert list_versions(manifest) == {"torch": "2", "commit": "abc", "device": "cpu"}
    assert list_versions({"versions": ["x"]}) == {}
    assert len(list_versions({"versions": {str(number): 1 for number in range(1000)}})) == 50


def test_differences_distinguish_absent_from_none_and_true_from_one() -> None:
    rows = list_differences([{"a": None, "b": True, "c": 1}, {"b": 1, "c": 1}])
    assert [tuple(row) for row in rows] == [("a", (None, ABSENT)), ("b", (True, 1))]
    assert len(list_differences([{"a": 1}, {"a": "1"}])) == 1
    assert list_differences([{"a": float("nan")}, {"a": float("nan")}]) == []


def test_settings_of_a_part_that_one_run_lacks_are_left_out() -> None:
    first = {"bonus.name": "mem", "bonus.k": 3, "bonus.beta0": 0.1, "agent.name": "sac", "agent.lr": 1, "agent.x": 1}
    second = {"bonus.name": "rnd", "bonus.beta0": 0.2, "agent.name": "sac", "agent.lr": 2}
    rows = leave_out_parts(list_differences([first, second]))
    assert [row.name for row in rows] == ["agent.lr", "agent.x", "bonus.beta0", "bonus.name"]


def test_values_are_short() -> None:
    assert format_value("text") == "text"
    assert format_value([1, None]) == "[1, null]"
    assert len(format_value("x" * 1000)) == 300


def test_text_charts_place_curves_by_value_and_time() -> None:
    rising_curve, falling_curve = make_material([0.0, 10.0]).curve, make_material([10.0, 0.0]).curve
    *lines, axis, ends = draw_text_chart([rising_curve, falling_curve])
    assert len(lines) == HEIGHT
    assert lines[0] == f"10 │{MARKERS[1] * 3}{' ' * (WIDTH - 6)}{MARKERS[0] * 3}"
    assert lines[-1] == f" 0 │{MARKERS[0] * 3}{' ' * (WIDTH - 6)}{MARKERS[1] * 3}"
    assert axis == f"   └{'─' * WIDTH}"
    assert ends.split() == ["0", "100"]
    assert BOTH in draw_text_chart([rising_curve, rising_curve])[0]


def test_text_charts_of_few_points_are_drawn() -> None:
    assert draw_text_chart([make_material([]).curve]) == []
    lines = draw_text_chart([make_material([5.0, 5.0]).curve, make_material([]).curve])
    assert lines[HEIGHT // 2] == f"  │{MARKERS[0] * WIDTH}"
    assert any(MARKERS[0] in line for line in draw_text_chart([make_material([1.0]).curve]))
