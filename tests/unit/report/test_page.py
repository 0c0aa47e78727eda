"""The report page: its content, its size and the escaping of foreign text."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.report.camera_file import CAMERAS_FILE
from manyview.report.curves import Curve
from manyview.report.material import BrokenRun, RunMaterial, read_material
from manyview.report.page import MAX_PAGE_BYTES, build_page, document, write_page
from manyview.report.page.chart import NUM_COLORS, Line, draw_chart, draw_legend, format_tick, make_axis
from manyview.report.page.html import Html, escape_text, make_details, make_element, make_table
from manyview.report.page.returns import collect_scores
from manyview.report.page.style import CONTENT_POLICY, DARK_COLORS, DASHES, LIGHT_COLORS
from manyview.report.page.training import average_series, choose_videos
from manyview.report.published_results import PublishedResult
from manyview.report.ranking import group_runs
from tests.support.pages import Page, check_page
from tests.support.run_dirs import TASK, format_record, write_run_dir

MP4 = b"\0\0\0\x18ftypmp42" + bytes(100)
BREAKOUTS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</style><script>",
    "--><!--",
    "]]>",
    "&lt;b&gt;",
    "</title></svg><b>",
    "\x1b[2J\x1b]0;x\x07\u202e",
]


def make_material(
    returns: list[float], *, task: str = "toy/a", method: str = "m", seed: int = 1, **changes: Any
) -> RunMaterial:
    """Return the report material of a run with an evaluation every 100 frames."""
    name = changes.pop("name", f"{task}/{method}/{seed}")
    settings = changes.setdefault("settings", {"agent.name": "sac"})
    x = np.arange(0.0, 100 * len(returns), 100)

    def make_curve(scale: float) -> Curve:
        values = np.array(returns, np.float64)
        return Curve(
            task=task,
            method=method,
            seed=seed,
            path=Path(name),
            settings=settings,
            x=np.multiply(x, scale, dtype=np.float64),
            returns=values,
        )

    defaults = {"state": "finished", "versions": {"torch": "2"}, "command": "manyview train x"}
    return RunMaterial(name=name, curve=make_curve(1), timed_curve=make_curve(0.5), **{**defaults, **changes})


def make_two_methods(good: list[float], bad: list[float]) -> list[RunMaterial]:
    """Return runs of the methods `good` and `bad` with the given last returns."""
    return [
        make_material([0.0, value], method=method, seed=seed)
        for method, values in (("good", good), ("bad", bad))
        for seed, value in enumerate(values, 1)
    ]


def build_checked_page(runs: list[RunMaterial], **options: Any) -> Page:
    """Return the page of some runs after the checks of `check_page`."""
    return check_page(build_page(runs, **options).decode())


def test_elements_escape_text_and_attributes() -> None:
    for text in BREAKOUTS:
        page = Page(make_element("p", text, title=text))
        assert page.tags == ["p"]
        (value,) = page.get_values("p", "title")
        assert "".join(page.texts) == value == "".join(c if c.isprintable() else " " for c in text)


def test_elements_flatten_children_and_leave_out_none() -> None:
    child = make_element("b", "x")
    assert make_element("p", [child, [1, None]], "<", class_="a", id=None) == '<p class="a"><b>x</b>1&lt;</p>'
    assert make_element("meta", http_equiv="a") == '<meta http-equiv="a">'
    assert isinstance(child, Html)


def test_long_text_is_cut_before_it_is_escaped() -> None:
    assert escape_text("&" * 50, max_chars=10) == "&amp;" * 7 + "..."
    assert escape_text("&" * 10, max_chars=10) == "&amp;" * 10


def test_tables_name_their_columns_and_rows() -> None:
    page = Page(make_table("what it is", ("a", "b"), [("x", 1)]))
    assert page.get_values("th", "scope") == ["col", "col", "row"]
    assert page.get_values("table", "aria-label") == ["what it is"]
    assert page.get_values("div", "tabindex") == ["0"]
    assert "open" not in make_details("more", "text")
    assert 'open=""' in make_details("more", "text", is_open=True)


@pytest.mark.parametrize(
    "values", [[0, 1], [0, 812.3], [-3, 7], [5, 5], [0, 0], [1e37, -1e37], [5e-324, 0], [1e6, 1e6 + 1e-9], [np.nan], []]
)
def test_axes_cover_all_values_with_few_round_ticks(values: list[float]) -> None:
    axis = make_axis([values])
    finite_values = [value for value in values if np.isfinite(value)]
    assert 2 <= len(axis.ticks) <= 9
    rounding = 1e-9 * max(map(abs, finite_values), default=0)
    assert all(axis.ticks[0] - rounding <= value <= axis.ticks[-1] + rounding for value in finite_values)
    assert (axis.low, axis.high) == (axis.ticks[0], axis.ticks[-1])
    assert ((axis.scale(np.array(axis.ticks)) >= 0) & (axis.scale(np.array(axis.ticks)) <= 1)).all()


def test_ticks_are_short() -> None:
    frames = [format_tick(value, unit="frames") for value in (0, 500, 1500, 2e6, 1e37)]
    assert frames == ["0", "500", "1.5k", "2M", "1e+37"]
    assert [format_tick(value) for value in (0.25, 1000, 20_000, -20_000)] == ["0.25", "1000", "20k", "-20k"]


def test_lines_run_from_left_to_right_and_up() -> None:
    line = Line(style=0, x=np.array([0.0, 10.0]), y=np.array([0.0, 1.0]))
    page = Page(draw_chart([line], title="t", y_label="y"))
    (path,) = [
        d for d, c in zip(page.get_values("path", "d"), page.get_values("path", "class"), strict=True) if "line" in c
    ]
    (x0, y0), (x1, y1) = [tuple(map(float, point.split())) for point in path[1:].split("L")]
    assert (x0, y0, x1, y1) == (52, 218, 448, 10)
    assert page.get_values("svg", "role") == ["img"]
    assert "t" in page.texts


def test_long_lines_are_thinned_and_single_points_are_dots() -> None:
    x = np.arange(10_000.0)
    assert draw_chart([Line(style=0, x=x, y=x)], title="", y_label="").count("L") < 320
    assert draw_chart([Line(style=0, x=x[:1], y=x[:1])], title="", y_label="").count("<circle") == 1
    assert draw_chart([], title="", y_label="")


@pytest.mark.parametrize(
    ("duration_s", "unit", "last_tick"),
    [(100, "seconds", 100), (600, "minutes", 10), (7200, "hours", 2), (36_000, "hours", 10)],
)
def test_the_time_axis_has_the_largest_unit_that_fits_twice(duration_s: float, unit: str, last_tick: float) -> None:
    line = Line(style=0, x=np.array([0.0, duration_s]), y=np.zeros(2))
    page = Page(draw_chart([line], title="", y_label="", x_unit="seconds"))
    assert f"wall-clock time, {unit}" in page.texts
    assert f"{last_tick:g}" in page.texts


def test_thirty_six_lines_differ_by_color_or_dashes() -> None:
    legend = draw_legend([(number, str(number)) for number in range(36)])
    assert len(set(Page(legend).get_values("path", "class"))) == 36
    assert len(LIGHT_COLORS) == len(DARK_COLORS) == len(DASHES) == NUM_COLORS


def compute_contrast(first: str, second: str) -> float:
    """Return the WCAG contrast ratio of two colors."""

    def compute_luminance(color: str) -> float:
        channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear_channels = [
            channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels
        ]
        return 0.2126 * linear_channels[0] + 0.7152 * linear_channels[1] + 0.0722 * linear_channels[2]

    low, high = sorted((compute_luminance(first), compute_luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_line_colors_have_contrast_on_both_backgrounds() -> None:
    assert min(compute_contrast(color, "#ffffff") for color in LIGHT_COLORS) >= 4
    assert min(compute_contrast(color, "#0f1318") for color in DARK_COLORS) >= 4


def test_the_content_policy_allows_only_the_style_sheet() -> None:
    source = build_page([make_material([0, 1])]).decode()
    (style,) = re.findall(r"<style>(.*?)</style>", source, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert CONTENT_POLICY.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; media-src data:;")
    assert "unsafe" not in CONTENT_POLICY


def test_a_clear_winner_is_named_first() -> None:
    text = build_checked_page(make_two_methods([9.0, 9.5, 10, 10, 10], [1, 2, 1, 2, 1])).text
    assert "Winner: good. Its mean return is 9.7 (" in text
    assert "Against bad, 1.4 (1 to 1.8): probability of improvement 1.00 (1.00 to 1.00); permutation test" in text
    assert text.index("Winner") < text.index("Failed and unfinished runs None: every run") < text.index("Return over")


def test_three_seeds_name_no_winner() -> None:
    text = build_checked_page(make_two_methods([10, 10, 10], [1, 1, 2])).text
    assert "No clear winner. good has the highest mean return, 10 (10 to 10), but the order can be chance." in text
    assert "p = 0.1." in text


def test_equal_means_have_no_winner() -> None:
    assert (
        "No winner. bad and good have the same mean return, 10"
        in build_checked_page(make_two_methods([10, 10], [10, 10])).text
    )


def test_failed_seeds_are_counted_and_named() -> None:
    runs = make_two_methods([5.0, 6.0], [1.0])
    failed_run = make_material([3.0, 2.0], method="good", seed=3, state="failed", reason="NaN in reward")
    page = build_checked_page([*runs, failed_run], broken=[BrokenRun("lost/run", "config.json does not exist")])
    assert "5 runs on 1 task. Not finished: 1 broken, 1 failed." in page.text
    assert "toy/a/good/3 toy/a good 3 failed 100 2 NaN in reward" in page.text
    assert "lost/run broken config.json does not exist" in page.text
    assert "good 3 4.333 (2 to 6)" in page.text
    row = page.text[page.text.index("good 3 4.333") :]
    assert row.split(" 2 to 6 ")[1].startswith("1 1 100 50 s")  # ended early, not above start, frames, wall-clock


def test_a_run_without_evaluations_is_counted_but_has_no_score() -> None:
    text = build_checked_page([make_material([1.0, 2.0]), make_material([], seed=2, state="killed")]).text
    assert "m 1 of 2 2" in text
    assert "Not finished: 1 killed." in text
    page = build_checked_page([make_material([], state="running")])
    assert page.text.count("No run has been evaluated yet.") == 2, "in the result and instead of empty charts"
    assert "simulator frames" not in page.text


def test_a_seed_that_is_included_twice_is_named() -> None:
    warning = "m: seed 1 is included more than once"
    assert (
        warning
        in build_checked_page(
            [make_material([1.0, 2.0]), make_material([1.0, 3.0], name="copy"), make_material([1.0], seed=2)]
        ).text
    )
    assert warning not in build_checked_page([make_material([1.0, 2.0]), make_material([1.0, 3.0], seed=2)]).text


def test_several_tasks_start_with_the_best_method_of_each() -> None:
    runs = [
        make_material([0.0, value], task=task, method=method, seed=seed)
        for task, scale in (("toy/a", 1.0), ("toy/b", 100.0))
        for method, values in (("x", [1.0, 2.0, 2.0]), ("y", [0.5, 0.5, 1.0]))
        for seed, value in enumerate([scale * value for value in values], 1)
    ]
    text = build_checked_page(runs).text
    assert "toy/a x 1.667 (1 to 2) 3 no toy/b x 166.7 (100 to 200) 3 no" in text
    assert "2 methods with runs on all 2 tasks." in text
    assert re.search(r"x 6 0\.875 \([\d. to]+\) 0\.8333", text)  # normalized: by 2 and by 200
    assert "x y 0.94 (" in text


def test_scores_of_several_tasks_are_scaled_from_untrained_policies_to_the_best_run() -> None:
    runs = [make_material([first, last], task="toy/a", seed=int(last)) for first, last in ((1.0, 5.0), (3.0, 10.0))]
    runs += [make_material([-100.0, -90.0], task="toy/b"), make_material([7.0, 7.0], task="toy/never")]
    scores = collect_scores(group_runs(runs), ["toy/a", "toy/b", "toy/never"])
    assert [part.tolist() for part in scores["m"]] == [[3 / 8, 1.0], [1.0]]
    single_task_scores = collect_scores(group_runs(runs[:2]), ["toy/a"])
    assert single_task_scores["m"][0].tolist() == [5.0, 10.0]


def test_published_results_of_the_task_are_in_table_and_chart() -> None:
    rows = [
        PublishedResult(task=task, method="paper", frames=frames, returns=(1.0, 2.0, 3.0), source="a book", views=1)
        for task, frames in (("toy/a", 100), ("toy/a", 900), ("toy/other", 100))
    ]
    page = build_checked_page([make_material([0.0, 1.0])], published=rows)
    assert "1 paper 100 2 (1 to 3) 3 1 a book 2 paper 900" in page.text
    assert page.get_values("circle", "class").count("mark") == 1  # the other one is beyond the last frame
    assert "toy/other" not in page.text


def test_settings_versions_and_commands_are_shown() -> None:
    runs = [
        make_material([0.0, 1.0], method="a", settings={"replay.k": 1, "same": 2}, command="manyview train one"),
        make_material([0.0, 1.0], method="b", settings={"replay.k": 3, "same": 2}, versions={"torch": "3"}),
    ]
    text = build_checked_page(runs).text
    assert "setting a b replay.k 1 3 All settings" in text.replace("▶", "")
    assert '"same": 2' in text
    assert "run torch toy/a/a/1 2 toy/a/b/1 3" in text
    assert "manyview train one" in text


def test_diagnostics_are_averaged_over_the_frames_that_all_seeds_have() -> None:
    first = np.array([0.0, 100.0, 200.0]), np.array([0.0, 1.0, 2.0])
    second = np.array([100.0, 200.0, 300.0]), np.array([3.0, 4.0, 5.0])
    mean_series = average_series([first, second])
    assert mean_series is not None
    assert mean_series[0].tolist() == [100, 200]
    assert mean_series[1].tolist() == [2, 3]
    assert average_series([first, (np.array([900.0]), np.array([1.0]))]) is None


def test_diagnostics_by_view_and_beta_are_drawn() -> None:
    x = np.array([0.0, 100.0])
    names = (
        "std/front",
        "std/<b>",
        "rank/front",
        "share/front",
        "discriminator_accuracy",
        "chance",
        "beta",
        "contrast",
    )
    page = build_checked_page([make_material([0.0, 1.0], diagnostics=dict.fromkeys(names, (x, x)))])
    titles = [text for text in page.texts if " on toy/a" in text]
    assert [title for title in titles if title.startswith(("std of <b>, front", "rank of", "share of", "discr"))]
    assert "β, the weight of the bonus, on toy/a" in titles
    assert page.text.count("how often the discriminator names the view") == 1
    zero_beta_page = build_checked_page([make_material([0.0, 1.0], diagnostics={"beta": (x, np.zeros(2))})])
    assert "β, the weight" not in zero_beta_page.text


@pytest.mark.parametrize(
    ("count", "names"),
    [(1, ["last"]), (2, ["first", "last"]), (3, ["first", "middle", "last"]), (9, ["first", "middle", "last"])],
)
def test_first_middle_and_last_video_of_the_median_run_are_chosen(count: int, names: list[str], tmp_path: Path) -> None:
    for seed, value in ((1, 1.0), (2, 5.0), (3, 9.0)):
        run = write_run_dir(tmp_path / f"{seed}", [0.0, value], seed=seed)
        (run / "videos").mkdir()
        for number in range(count):
            (run / "videos" / f"{number:09}.mp4").write_bytes(MP4)
    groups = group_runs([read_material(path, name=path.name) for path in sorted(tmp_path.iterdir())])
    videos = choose_videos(groups)
    assert {video.run.name for video in videos} == {"2"}
    assert [video.when for video in videos] == names
    assert [video.video.frames for video in videos][-1] == count - 1
    if count == 9:
        assert [video.video.frames for video in videos] == [0, 4, 8]


def make_run_with_videos(path: Path, sizes: list[int]) -> RunMaterial:
    """Return the material of a run with videos of the given sizes in bytes."""
    run = write_run_dir(path, [0.0, 1.0])
    (run / "videos").mkdir()
    for number, size in enumerate(sizes):
        (run / "videos" / f"{number}.mp4").write_bytes(MP4 + bytes(size))
    return read_material(run, name="run")


def test_videos_are_embedded_as_they_are(tmp_path: Path) -> None:
    page = build_checked_page([make_run_with_videos(tmp_path / "run", [0, 1, 2])])
    sources = [base64.b64decode(value.split(",")[1]) for value in page.get_values("video", "src")]
    assert sources == [MP4 + bytes(size) for size in (0, 1, 2)]
    assert all(TASK in label for label in page.get_values("video", "aria-label"))


def test_videos_over_the_size_limit_are_left_out_and_named(tmp_path: Path) -> None:
    content = build_page([make_run_with_videos(tmp_path / "run", [9_000_000, 6_000_000, 7_000_000])])
    assert len(content) <= MAX_PAGE_BYTES == 15_000_000
    page = check_page(content.decode())
    (source,) = page.get_values("video", "src")
    assert len(base64.b64decode(source.split(",")[1])) == len(MP4) + 7_000_000  # the last policy
    assert "Left out: run/videos/0.mp4, 0.mp4 is too large" in page.text
    assert "Left out: run/videos/1.mp4" in page.text


def test_a_file_that_is_no_video_is_left_out(tmp_path: Path) -> None:
    run = make_run_with_videos(tmp_path / "run", [])
    (run.curve.path / "videos" / "5.mp4").write_bytes(b"<html><script>alert(1)</script></html>")
    page = build_checked_page([read_material(run.curve.path, name="run")])
    assert "video" not in page.tags
    assert "5.mp4 is not an MP4 file" in page.text


def test_text_of_a_run_is_escaped(tmp_path: Path) -> None:
    for number, text in enumerate(BREAKOUTS):
        sections: dict[str, Any] = {"env": {text: text}}
        manifest = {"versions": {text: text}, "commit": text, "renderer": {text: [text]}}
        run = write_run_dir(tmp_path / str(number), [0.0, 1.0], task=text, seed=number, manifest=manifest, **sections)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(format_record("train", 2000, **{f"std/{text}": 1.0, f"share/{text}": 0.5, "beta": 0.1}))
            file.write(format_record("train", 3000, **{f"std/{text}": 1.0, f"share/{text}": 0.5, "beta": 0.1}))
            file.write(format_record("end", 3000, state="failed", reason=text))
        figures = {"frames": 1, "subsets": [{"cameras": [text], "returns": [1.0]}], "shapley": {text: [1, 1, 1]}}
        (run / CAMERAS_FILE).write_text(json.dumps({"reports": [figures]}))
    runs = [read_material(path, name=f"{path.name}{BREAKOUTS[int(path.name)]}") for path in tmp_path.iterdir()]
    rows = [
        PublishedResult(task=runs[0].curve.task, method=text, frames=500, returns=(1.0,), source=text)
        for text in BREAKOUTS
    ]
    broken = [BrokenRun(text, text) for text in BREAKOUTS]
    page = build_checked_page(runs, broken=broken, published=rows, title=BREAKOUTS[0])
    assert page.text.count("alert(1)") > 50
    assert "<script>alert(1)</script>" in page.text


def test_paths_of_the_machine_are_not_shown(tmp_path: Path) -> None:
    run = write_run_dir(
        tmp_path / "secret" / "run",
        [0.0, 1.0],
        schedule={"initial_run": "/home/me/first"},
        replay={"directory": "/home/me/replay", "demonstrations": "/home/me/shown"},
        logging={"entity": "myaccount"},
        manifest={"host": "myhost", "pid": 4711, "environment": {"KEY": "value"}, "versions": {"torch": "2"}},
    )
    other = write_run_dir(
        tmp_path / "secret" / "other",
        [0.0, 1.0],
        schedule={"initial_run": "/home/me/second"},
        replay={"directory": None, "demonstrations": None},
    )
    source = build_page([read_material(path, name=path.name) for path in (run, other)]).decode()
    assert "replay.demonstrations shown, schedule.initial_run first" in source
    assert not [text for text in ("/home/me", "secret", "myhost", "myaccount", "4711", "KEY") if text in source]


def test_no_or_too_many_runs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"expected 1 to 500 readable runs, got 0; lost: no config"):
        build_page([], broken=[BrokenRun("lost", "no config")])
    with pytest.raises(ValueError, match="got 501"):
        build_page([make_material([1.0])] * 501)
    monkeypatch.setattr(document, "MAX_PAGE_BYTES", 1000)
    with pytest.raises(ValueError, match=r"too large: expected at most 1,000 bytes, got [\d,]+ without videos"):
        build_page([make_material([1.0])])


def test_the_page_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "report.html").symlink_to(tmp_path / "other")
    size = write_page(tmp_path / "report.html", [make_material([0.0, 1.0])])
    assert (tmp_path / "other").read_text() == "kept"
    assert (tmp_path / "report.html").stat().st_size == size
