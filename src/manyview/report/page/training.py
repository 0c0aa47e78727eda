"""Videos, value of the cameras, and diagnostics over time."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from manyview.report.camera_file import CAMERAS_FILE, CameraFigures
from manyview.report.material import METERS, RunMaterial, Series, Video
from manyview.report.page.chart import Line, draw_chart, draw_legend, thin_out
from manyview.report.page.html import Html, make_details, make_element, make_table
from manyview.report.page.returns import Styles
from manyview.report.ranking import MethodRuns
from manyview.report.statistics import EpisodeMean
from manyview.utils.files import read_bounded
from manyview.utils.text import format_bytes

METER_TITLES = {
    "std": "standard deviation of the features: 0 is a collapse",
    "rank": "effective rank of the features",
    "share": "share of the bonus by view",
}
SCALAR_TITLES = {
    "beta": "β, the weight of the bonus",
    "contrast": "bonus contrast, β · std(r̂)",
    "reward_int": "mean r̂ of the batch, before β",
}
MIN_SCALAR = 1e-6
"""Largest magnitude below which a diagnostic is not drawn."""
MP4_MAGIC = b"ftyp"
"""Bytes 4 to 8 of every MP4 file."""


@dataclass(frozen=True)
class ChosenVideo:
    """Video of a method to embed."""

    group: MethodRuns
    run: RunMaterial
    video: Video
    when: str
    """Policy that it shows: first, middle or last."""


def choose_videos(groups: Sequence[MethodRuns]) -> list[ChosenVideo]:
    """Return first, middle and last video of one run of each method, that of the median last return."""
    chosen = []
    for group in groups:
        runs = sorted((run for run in group.evaluated if run.videos), key=lambda run: run.last_return or 0.0)
        if runs:
            run = runs[(len(runs) - 1) // 2]
            count = len(run.videos)
            names = {0: "first", count // 2: "middle", count - 1: "last"}  # of a single one, only the last
            chosen += [ChosenVideo(group, run, run.videos[index], name) for index, name in names.items()]
    return chosen


def write_videos(groups: Sequence[MethodRuns], *, max_bytes: int) -> Iterator[Html]:
    """Yield the chosen videos, embedded up to `max_bytes` of base64; the last policies come first."""
    chosen = choose_videos(groups)
    if not chosen:
        yield make_element("p", "No run has videos. Install the extra video and keep evaluation.video=true.")
        return
    embedded, notes = _embed_videos(chosen, max_bytes)
    for group in groups:
        videos = [video for video in chosen if video.group is group]
        if not videos:
            continue
        run = videos[0].run
        yield make_element("h3", f"{group.task}, {group.label}")
        yield make_element("p", f"Run {run.name}, that of the median last return among those with videos.")
        figures = [
            _make_figure(video, embedded[number])
            for number, video in enumerate(chosen)
            if video.group is group and number in embedded
        ]
        yield make_element("div", figures, class_="grid videos")
    for note in notes:
        yield make_element("p", note, class_="soft")


def write_cameras(groups: Sequence[MethodRuns]) -> Iterator[Html]:
    """Yield the value of each camera for the runs that have it, and name the missing ones."""
    missing = []
    for group in groups:
        measured = [run for run in group.runs if run.cameras]
        if not measured:
            missing.append(f"{group.task}, {group.label}")
        for run in measured:
            yield make_element("h3", f"{group.task}, {group.label}, run {run.name}")
            for figures in run.cameras:
                yield from _write_camera_tables(run, figures)
    if missing:
        yield make_element("p", "Not measured:")
        yield make_element("ul", [make_element("li", name) for name in missing])
        command = make_element("code", f"manyview cameras RUN --out RUN/{CAMERAS_FILE}")
        yield make_element("p", command, " measures what each camera is worth; then write this report again.")


def write_diagnostics(task: str, groups: Sequence[MethodRuns], styles: Styles, *, is_open: bool = False) -> Html | None:
    """Return the diagnostics of a task over time, mean over seeds; None if no run has any."""
    scalars = [
        chart for name, title in SCALAR_TITLES.items() if (chart := _draw_scalar(task, groups, styles, name, title))
    ]
    parts: list[object] = []
    if scalars:
        entries = [(styles[g.label], g.label) for g in groups if any(n in _list_names(g) for n in SCALAR_TITLES)]
        parts += [draw_legend(entries), make_element("div", scalars, class_="grid")]
    for group in groups:
        parts += _draw_meters(group)
    return make_details(f"Diagnostics on {task}", *parts, is_open=is_open) if parts else None


def average_series(series: Sequence[Series]) -> Series | None:
    """Return the mean of several series over the frames that all of them cover; None without such frames."""
    start, end = max(frames[0] for frames, _ in series), min(frames[-1] for frames, _ in series)
    frames = np.unique(np.concatenate([part for part, _ in series]))
    frames = frames[(frames >= start) & (frames <= end)]
    if not len(frames):
        return None
    frames = frames[thin_out(frames)]
    return frames, np.mean([np.interp(frames, part, values) for part, values in series], axis=0)


def _embed_videos(chosen: Sequence[ChosenVideo], max_bytes: int) -> tuple[dict[int, str], list[str]]:
    """Return data URIs by the number of the video, and a note for each that is left out."""
    embedded, notes, left = dict[int, str](), list[str](), max_bytes
    order = sorted(range(len(chosen)), key=lambda number: ("last", "first", "middle").index(chosen[number].when))
    for number in order:
        video = chosen[number].video
        name = f"{chosen[number].run.name}/videos/{video.path.name}"
        try:
            content = read_bounded(video.path, max_bytes=max(0, left * 3 // 4 - 64))
        except OSError as error:
            notes.append(f"Left out: {name}, {error}. The page holds {format_bytes(max_bytes)} of videos.")
            continue
        if content[4:8] != MP4_MAGIC:
            notes.append(f"Left out: {name} is not an MP4 file.")
            continue
        embedded[number] = f"data:video/mp4;base64,{b64encode(content).decode()}"
        left -= len(embedded[number])
    return embedded, notes


def _make_figure(chosen: ChosenVideo, source: str) -> Html:
    text = f"{chosen.when} policy, after {chosen.video.frames:,} frames"
    player = make_element(
        "video",
        controls="",
        muted="",
        playsinline="",
        preload="metadata",
        aria_label=f"{chosen.group.task}, {chosen.group.label}: {text}",
        src=Html(source),
    )
    return make_element("figure", player, make_element("figcaption", text))


def _write_camera_tables(run: RunMaterial, figures: CameraFigures) -> Iterator[Html]:
    everything = max(figures.subsets, key=len)
    yield make_table(
        f"Value of each camera of {run.name} after {figures.frames:,} frames, over {figures.episodes} episodes. "
        "Shapley value: return that the camera adds, averaged over all orders of adding cameras.",
        ("camera", "Shapley value", "return lost without it", "return with it alone"),
        (
            [
                camera,
                _format(figures.shapley.get(camera)),
                _format(figures.losses.get(camera)),
                _format(figures.subsets.get((camera,))),
            ]
            for camera in everything
        ),
    )
    yield make_table(
        f"Return of {run.name} by the cameras that it sees.",
        ("cameras", "return"),
        ([" + ".join(subset) or "none (random actions)", _format(value)] for subset, value in figures.subsets.items()),
    )


def _format(estimate: EpisodeMean | None) -> str:
    return "-" if estimate is None else f"{estimate.mean:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def _list_names(group: MethodRuns) -> set[str]:
    return {name for run in group.runs for name in run.diagnostics}


def _collect(group: MethodRuns, name: str) -> Series | None:
    series = [run.diagnostics[name] for run in group.runs if name in run.diagnostics]
    return average_series(series) if series else None


def _draw_scalar(task: str, groups: Sequence[MethodRuns], styles: Styles, name: str, title: str) -> Html | None:
    found = [(styles[group.label], series) for group in groups if (series := _collect(group, name)) is not None]
    # Without a bonus zero, and with a centered one zero up to rounding.
    if not found or all(np.abs(values).max() < MIN_SCALAR for _, (_, values) in found):
        return None
    lines = [Line(style=style, x=series[0], y=series[1]) for style, series in found]
    return _make_chart(lines, f"{title}, on {task}", title, name)


def _draw_meters(group: MethodRuns) -> list[Html]:
    names = _list_names(group)
    views = sorted({name.partition("/")[2] for name in names if "/" in name})
    charts = []
    for meter in METERS:
        found = [(number, _collect(group, f"{meter}/{view}")) for number, view in enumerate(views)]
        lines = [Line(style=number, x=series[0], y=series[1]) for number, series in found if series is not None]
        if lines:
            title = f"{meter} of {', '.join(views)}: {group.label} on {group.task}"
            charts.append(_make_chart(lines, title, METER_TITLES[meter], meter))
    parts = []
    if charts:
        parts += [
            make_element("h4", f"{group.label}: features by view"),
            draw_legend(list(enumerate(views))),
            make_element("div", charts, class_="grid"),
        ]
    accuracy, chance = _collect(group, "discriminator_accuracy"), _collect(group, "chance")
    if accuracy is not None and chance is not None:
        lines = [Line(style=number, x=x, y=y) for number, (x, y) in enumerate((accuracy, chance))]
        title = f"discriminator accuracy of {group.label} on {group.task}"
        chart = _make_chart(lines, title, "how often the discriminator names the view, and a guess", "accuracy")
        parts += [
            make_element("h4", f"{group.label}: discriminator"),
            draw_legend([(0, "discriminator"), (1, "chance")]),
            make_element("div", chart, class_="grid"),
        ]
    return parts


def _make_chart(lines: Sequence[Line], title: str, caption: str, y_label: str) -> Html:
    # From 0, the value of a collapse.
    y_range = (min(0.0, *(line.y.min() for line in lines)), max(line.y.max() for line in lines))
    chart = draw_chart(lines, title=title, y_label=y_label, y_range=y_range)
    return make_element("figure", chart, make_element("figcaption", caption))
