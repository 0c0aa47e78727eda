"""The page: its sections in order, within the size limit."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from manyview.report.material import BrokenRun, RunMaterial
from manyview.report.page.html import Html, join_children, make_element
from manyview.report.page.provenance import write_commands, write_settings, write_versions
from manyview.report.page.returns import write_aggregates, write_curves
from manyview.report.page.style import CONTENT_POLICY, STYLE
from manyview.report.page.summary import describe_runs, write_overview, write_unfinished
from manyview.report.page.training import write_cameras, write_diagnostics, write_videos
from manyview.report.published_results import PublishedResult
from manyview.report.ranking import group_runs, rank_methods
from manyview.utils.atomic_io import write_atomic

MAX_PAGE_BYTES = 15_000_000
"""Limit of the page, which mail programs and chats still accept."""
MAX_RUNS = 500
VIDEO_MARK = Html("<!-- videos -->")

NOTES = (
    "The last return of a run is the mean of its last evaluation, also if the run ended early.",
    "Intervals are 95 % percentile intervals of 10,000 bootstrap samples of the seeds, drawn within each task. With "
    "fewer than three seeds there is none, and with three it is hardly more than their range.",
    "IQM is the interquartile mean: of the middle half of all runs (Agarwal et al., 2021).",
    "A method wins if the exact permutation test of the means has p of at most 0.05 against each other method of the "
    "task, two-sided and corrected by Holm's method. Three seeds against three cannot reach that: p is at least 0.1. "
    "Where there are too many seeds to list all splits, the interval of the probability of improvement must exclude "
    "one half.",
    "“Not above start” counts runs whose last return is at most that of their untrained policy.",
    "Wall-clock time counts from the start of a run, with its evaluations. It is the median over seeds and depends on "
    "the machine and on what else it did.",
    "Diagnostics are those of single batches, averaged over the seeds.",
)


def write_page(
    path: Path,
    runs: Sequence[RunMaterial],
    *,
    broken: Sequence[BrokenRun] = (),
    published: Sequence[PublishedResult] = (),
    title: str = "Report on training runs",
) -> int:
    """Write the report on runs and return its size in bytes.

    Raises:
        ValueError: There are no or too many runs, or their texts and charts exceed the size limit.

    """
    content = build_page(runs, broken=broken, published=published, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, [content])
    return len(content)


def build_page(
    runs: Sequence[RunMaterial],
    *,
    broken: Sequence[BrokenRun] = (),
    published: Sequence[PublishedResult] = (),
    title: str = "Report on training runs",
) -> bytes:
    """Return the page, UTF-8 encoded, as `write_page` writes it."""
    if not 1 <= len(runs) <= MAX_RUNS:
        raise ValueError(
            f"no report possible: expected 1 to {MAX_RUNS} readable runs, got {len(runs)}"
            + "".join(f"; {run.name}: {run.reason}" for run in broken[:3])
        )
    groups = group_runs(runs)
    by_task = {task: list(members) for task, members in groupby(groups, key=lambda group: group.task)}
    rankings = [rank_methods(task, members) for task, members in by_task.items()]
    styles = {label: number for number, label in enumerate(sorted({group.label for group in groups}))}
    sections = [
        _make_section("result", "Result", write_overview(rankings, groups)),
        _make_section("unfinished", "Failed and unfinished runs", [write_unfinished(runs, broken)]),
        _make_section(
            "curves",
            "Return curves",
            [part for task, members in by_task.items() for part in write_curves(task, members, styles, published)],
        ),
        _make_section("all-runs", "All runs together", write_aggregates(groups, styles)),
        _make_section("videos", "Videos", [VIDEO_MARK]),
        _make_section("cameras", "Cameras", write_cameras(groups)),
        _make_section(
            "diagnostics",
            "Diagnostics",
            [write_diagnostics(task, members, styles, is_open=len(by_task) == 1) for task, members in by_task.items()],
        ),
        _make_section("settings", "Settings", write_settings(groups)),
        _make_section("versions", "Versions", write_versions(runs)),
        _make_section("commands", "Commands", write_commands(runs)),
        _make_section("notes", "How the figures are computed", _write_notes()),
    ]
    lead = describe_runs(runs, broken, rankings)
    page = _make_document(title, lead, sections)
    room = MAX_PAGE_BYTES - len(page.encode()) - 100_000  # for headings and captions of the videos
    if room < 0:
        raise ValueError(
            f"the report is too large: expected at most {MAX_PAGE_BYTES:,} bytes, got {len(page.encode()):,} without "
            "videos. Report on fewer runs"
        )
    return page.replace(VIDEO_MARK, join_children(write_videos(groups, max_bytes=room)), 1).encode()


def _make_section(name: str, heading: str, parts: Iterable[object]) -> tuple[str, str, Html]:
    content = join_children(*parts) or make_element("p", "Nothing recorded.")
    section = make_element("section", make_element("h2", heading, id=f"{name}-heading"), content, id=name)
    return name, heading, section


def _make_document(title: str, lead: Html, sections: Sequence[tuple[str, str, Html]]) -> str:
    links = [make_element("li", make_element("a", heading, href=f"#{name}")) for name, heading, _ in sections]
    head = make_element(
        "head",
        make_element("meta", charset="utf-8"),
        make_element("meta", http_equiv="Content-Security-Policy", content=CONTENT_POLICY),
        make_element("meta", name="referrer", content="no-referrer"),
        make_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        make_element("title", title),
        make_element("style", Html(STYLE)),
    )
    body = make_element(
        "body",
        make_element(
            "header",
            make_element("h1", title),
            lead,
            make_element("nav", make_element("ul", links), aria_label="Sections"),
        ),
        make_element("main", [section for *_, section in sections]),
        make_element("footer", "Written by manyview report. The page needs no network and holds no scripts."),
    )
    return f"<!doctype html>\n{make_element('html', head, body, lang='en')}\n"


def _write_notes() -> list[Html]:
    return [make_element("ul", [make_element("li", note) for note in NOTES])]
