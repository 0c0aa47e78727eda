"""`manyview cameras`: measure what each camera is worth to a trained policy."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from manyview.cli.arguments import JsonFlag, OwnTaskOption, exit_on_error, log_progress, report_error
from manyview.deploy.camera_figure import draw_cameras, format_cameras
from manyview.deploy.camera_value import FAULT_KINDS, CameraReport, Returns, measure_cameras
from manyview.report.camera_file import write_camera_file
from manyview.report.policy_rollout import RunPlayer
from manyview.report.statistics import estimate_episode_mean
from manyview.utils.output_paths import PLOT_SUFFIXES, check_output_file
from manyview.utils.text import print_line

Row = Sequence[str]
CAMERA_FILE_SUFFIX = ".json"


def cameras(
    runs: Positional[
        Annotated[tuple[Path, ...], arg(metavar="RUN ...", help="Run directories; several are compared.")]
    ],
    *,
    episodes: Annotated[int, arg(metavar="N", help="Episodes for each subset of the cameras and each fault.")] = 20,
    faults: Annotated[bool, arg(help="Also play with each camera black, frozen, noisy and late.")] = True,
    out: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="Draw the tables to this .png, .svg or .pdf file, or keep every return in this .json file, which "
            "`manyview report` reads as RUN/cameras.json.",
            help_behavior_hint="",
        ),
    ] = None,
    own_task: OwnTaskOption = None,
    as_json: JsonFlag = False,
) -> int:
    """Measure what each camera is worth to a trained policy.

    The policy plays the same episodes with every subset of its cameras; with more than four, with each camera alone and
    each camera missing.
    """
    if not runs:
        return report_error("no run: expected at least one run directory. `manyview runs` lists them")
    reports = []
    with exit_on_error():
        if out is not None:
            check_output_file(out, (*PLOT_SUFFIXES, CAMERA_FILE_SUFFIX))
        for run in runs:
            with RunPlayer(run, trusted_task=own_task) as player:
                reports.append(measure_cameras(player, episodes=episodes, with_faults=faults, log=log_progress))
        plain = [_to_plain(run, report) for run, report in zip(runs, reports, strict=True)]
        if out is not None and out.suffix.lower() == CAMERA_FILE_SUFFIX:
            write_camera_file(out, plain)
        elif out is not None:
            draw_cameras(out, reports, [run.name if len(runs) > 1 else reports[0].task for run in runs])
    if as_json:
        print(json.dumps(plain, indent=2))
        return 0
    for index, (run, report) in enumerate(zip(runs, reports, strict=True)):
        if index:
            print()
        _print_report(run, report)
    if out is not None:
        print_line(f"written to {out}")
    return 0


def _print_report(run: Path, report: CameraReport) -> None:
    print_line(f"{run}: {report.task}, {report.method}, after {report.frames:,} frames of training")
    _print_table(("cameras", "return", "95 % interval"), _list_subset_rows(report))
    _print_table(("camera", *_list_value_heads(report)), _list_camera_rows(report))
    if report.fault_returns:
        _print_table(("one faulty camera", *FAULT_KINDS), _list_fault_rows(report))


def _list_subset_rows(report: CameraReport) -> Iterator[Row]:
    for subset, returns in report.returns.items():
        yield format_cameras(subset, report), *_format_estimate(returns)


def _list_value_heads(report: CameraReport) -> Row:
    value = () if report.shapley_values is None else ("Shapley value", "95 % interval")
    return *value, "lost without it", "95 % interval", "saves per action"


def _list_camera_rows(report: CameraReport) -> Iterator[Row]:
    values = report.shapley_values or {}
    for camera in report.cameras:
        value = _format_estimate(values[camera]) if values else ()
        without = report.act_ms_without.get(camera)
        saved = "" if without is None else f"{report.act_ms - without:.2f} of {report.act_ms:.2f} ms"
        yield camera, *value, *_format_estimate(report.get_losses(camera)), saved


def _list_fault_rows(report: CameraReport) -> Iterator[Row]:
    for camera in report.cameras:
        yield camera, *(f"{report.fault_returns[camera, kind].mean():.1f}" for kind in FAULT_KINDS)


def _format_estimate(returns: Returns) -> tuple[str, str]:
    mean, low, high = estimate_episode_mean(returns)
    return f"{mean:.1f}", f"{low:.1f} to {high:.1f}"


def _print_table(head: Row, rows: Iterator[Row]) -> None:
    """Print aligned columns after an empty line, the first to the left."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for first, *others in table:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print_line("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def _to_plain(run: Path, report: CameraReport) -> dict[str, Any]:
    values = report.shapley_values
    return {
        "run": str(run),
        "task": report.task,
        "method": report.method,
        "frames": report.frames,
        "subsets": [{"cameras": subset, "returns": returns.tolist()} for subset, returns in report.returns.items()],
        "shapley": values and {camera: estimate_episode_mean(value) for camera, value in values.items()},
        "faults": [
            {"camera": camera, "fault": kind, "returns": returns.tolist()}
            for (camera, kind), returns in report.fault_returns.items()
        ],
        "act_ms": report.act_ms,
        "act_ms_without": report.act_ms_without,
    }
