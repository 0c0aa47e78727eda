"""Sheets and videos: every picture is there, where its labels say, and unchanged."""

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image as PillowImage
from PIL import ImageSequence

from manyview.envs import MultiViewEnv, View, make, wrap
from manyview.envs.views import Image, Observation
from manyview.envs.visualization import (
    RecordedStep,
    Row,
    compute_median_step_ms,
    draw_contact_sheet,
    draw_grid,
    draw_video_frames,
    record_random_steps,
    render_fault_rows,
    save_image,
    summarize_views,
    write_video,
)
from manyview.envs.visualization.contact_sheet import MAX_COLUMNS, format_step_label, format_view_label, subsample_steps

RED, GREEN, BLUE, YELLOW = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)


def plain(colour: tuple[int, ...], height: int = 10, width: int = 10) -> Image:
    return np.broadcast_to(np.array(colour, np.uint8), (height, width, len(colour))).copy()


def box(sheet: Image, colour: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Top, left, height and width of what has this colour, which must be a full rectangle."""
    down, across = np.nonzero((sheet == colour).all(-1))
    height, width = int(np.ptp(down)) + 1, int(np.ptp(across)) + 1
    assert len(down) == height * width
    return int(down.min()), int(across.min()), height, width


def moments_of(*pictures: Image | None) -> list[RecordedStep]:
    return [RecordedStep(step=step, frame=step, images={"top": picture}) for step, picture in enumerate(pictures)]


def half(colour: tuple[int, ...]) -> Image:
    """Half of the picture is black: a view of one colour is warned of."""
    return np.concatenate([plain(colour, 16, 8), plain((0, 0, 0), 16, 8)], axis=1)


class Blinking(MultiViewEnv):
    """Its second camera is absent at every other step."""

    def __init__(self) -> None:
        super().__init__([View("top", 16, 16), View("side", 16, 16)], spaces.Discrete(2))
        self._step = 0

    def _look(self) -> Observation:
        return self.observe({"top": half(RED), "side": half(BLUE) if self._step % 2 == 0 else None})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._step += 1
        return self._look(), 0.5, False, self._step == 4, {"frames": 2}


# The grid


def test_pictures_stand_in_rows_and_columns_enlarged_by_a_whole_factor() -> None:
    rows = [Row("one", [plain(RED), plain(GREEN)]), Row("two", [plain(BLUE), plain(YELLOW)])]
    sheet = draw_grid(rows, column_labels=["a", "b"], title="all", cell_px=25)
    places = {colour: box(sheet, colour) for colour in (RED, GREEN, BLUE, YELLOW)}
    assert {place[2:] for place in places.values()} == {(30, 30)}
    assert places[RED][0] == places[GREEN][0] < places[BLUE][0] == places[YELLOW][0]
    assert places[RED][1] == places[BLUE][1] < places[GREEN][1] == places[YELLOW][1]


def test_a_large_picture_keeps_its_pixels() -> None:
    picture = np.random.default_rng(0).integers(256, size=(40, 60, 3), dtype=np.uint8)
    sheet = draw_grid([Row("", [picture])], cell_px=30)
    places = product(range(sheet.shape[0] - 39), range(sheet.shape[1] - 59))
    assert any(np.array_equal(sheet[y : y + 40, x : x + 60], picture) for y, x in places)


def test_pictures_of_different_sizes_and_kinds_share_a_sheet() -> None:
    rows = [Row("", [plain(RED, 30, 10)]), Row("", [plain((77,), 10, 30)])]
    sheet = draw_grid(rows, cell_px=10)
    assert box(sheet, RED)[2:] == (30, 10)
    assert box(sheet, (77, 77, 77))[2:] == (10, 30)


def test_a_white_picture_has_an_edge() -> None:
    sheet = draw_grid([Row("", [plain((255, 255, 255))])], cell_px=10)
    assert (sheet != 255).any()


def test_an_absent_picture_is_crossed_out_in_its_place() -> None:
    sheet = draw_grid([Row("", [plain(RED), None, plain(GREEN)])], cell_px=10)
    left, right = box(sheet, RED)[1] + 10, box(sheet, GREEN)[1]
    between = sheet[10:18, left + 2 : right - 2]
    assert right - left > 10
    assert len(np.unique(between.reshape(-1, 3), axis=0)) >= 3  # paper, cell and cross


def test_a_sheet_may_consist_of_absent_pictures() -> None:
    assert draw_grid([Row("gone", [None, None])], cell_px=20).shape[1] > 40


def test_labels_take_the_room_they_need_and_cover_nothing() -> None:
    bare = draw_grid([Row("", [plain(RED)])])
    labelled = draw_grid([Row("a label of some length", [plain(RED)])], column_labels=["two\nlines"], title="title")
    assert labelled.shape[0] > bare.shape[0]
    assert labelled.shape[1] > bare.shape[1]
    assert box(labelled, RED)[2:] == box(bare, RED)[2:]
    ink = (labelled.max(-1) < 100) & ~(labelled == RED).all(-1)
    top, left = box(labelled, RED)[:2]
    assert ink[:top].any()
    assert ink[top:, :left].any()
    assert not ink[top:, left:].any()


# What is watched


def test_the_same_seed_shows_the_same() -> None:
    env = make("toy/identity")
    first, again, other = (record_random_steps(env, 8, seed=seed) for seed in (3, 3, 4))

    def seen(moments: list[RecordedStep]) -> list[bytes]:
        return [picture.tobytes() for m in moments for picture in m.images.values() if picture is not None]

    assert seen(first) == seen(again) != seen(other)


def test_of_a_stack_the_newest_frame_is_shown() -> None:
    stacked, single = (record_random_steps(make("toy/identity", frame_stack=frames), 8, seed=0) for frames in (3, 1))
    for one, other in zip(stacked, single, strict=True):
        assert all(np.array_equal(one.images[name], other.images[name]) for name in ("upright", "lying"))  # type: ignore[arg-type]


def test_an_episode_that_ends_is_followed_by_the_next() -> None:
    moments = record_random_steps(wrap(Blinking()), 6, seed=0)
    assert [moment.step for moment in moments] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert [moment.step for moment in moments if moment.is_last] == [4]
    assert [moment.step for moment in moments if moment.reward is None] == [0, 0]


def test_an_absent_view_is_no_picture_and_lowers_its_presence() -> None:
    env: gym.Env[Observation, Any] = wrap(Blinking(), frame_stack=2)
    moments = record_random_steps(env, 3, seed=0)
    assert [moment.images["side"] is None for moment in moments] == [False, True, False, True]
    top, side = summarize_views(env.metadata["views"], moments)
    assert (top.present_fraction, side.present_fraction) == (1.0, 0.5)
    assert top.brightness == side.brightness == pytest.approx(85 / 2)


def test_a_view_that_never_came_has_no_brightness() -> None:
    (summary,) = summarize_views([View("top", 4, 4)], moments_of(None, None))
    assert (summary.brightness, summary.present_fraction) == (None, 0.0)


def test_frames_count_the_repeated_action() -> None:
    moments = record_random_steps(wrap(Blinking()), 3, seed=0)
    assert [moment.frame for moment in moments] == [0, 2, 4, 6]
    assert format_step_label(moments[0]) == "step 0\nreset"
    assert format_step_label(moments[1]) == "step 1, frame 2\nreward 0.5"
    assert compute_median_step_ms(moments) > 0


def test_the_end_of_an_episode_is_labelled() -> None:
    assert (
        format_step_label(RecordedStep(step=4, frame=4, images={}, reward=1.0, is_last=True)) == "step 4\nreward 1, end"
    )


def test_a_derived_view_says_what_was_removed_from_where() -> None:
    derived = View("side_foreground", 8, 8, derived_from="side")
    assert format_view_label(derived) == "side_foreground\nbackground removed\nfrom side"
    assert format_view_label(View("screen_crop", 8, 8, derived_from="screen")) == "screen_crop\nderived from screen"


def test_a_broken_camera_is_shown_in_every_way_it_can_fail() -> None:
    env = make("toy/identity", frame_stack=1)
    healthy = [moment.images["upright"] for moment in record_random_steps(env, MAX_COLUMNS - 1, seed=0)]
    rows = {row.label: row.images for row in render_fault_rows(env, MAX_COLUMNS - 1, seed=0)}
    assert list(rows) == [f"upright\n{how}, from step 1" for how in ("black", "frozen", "noise", "late by 1", "gone")]
    black, frozen, noise, late, gone = rows.values()
    for pictures in rows.values():
        assert np.array_equal(pictures[0], healthy[0])  # type: ignore[arg-type]
    assert not np.any(black[1:])  # type: ignore[arg-type]
    assert all(np.array_equal(picture, healthy[0]) for picture in frozen)  # type: ignore[arg-type]
    assert np.array_equal(late[1:], healthy[:-1])  # type: ignore[arg-type]
    assert gone[1:] == [None] * (MAX_COLUMNS - 1)
    assert len({picture.tobytes() for picture in noise if picture is not None}) == MAX_COLUMNS


# Sheets and videos


@pytest.mark.parametrize("count", [1, 2, MAX_COLUMNS, MAX_COLUMNS + 1, 100])
def test_a_sheet_shows_the_first_and_the_last_moment_and_few_between(count: int) -> None:
    moments = moments_of(*[plain(RED)] * count)
    steps = [moment.step for moment in subsample_steps(moments, MAX_COLUMNS)]
    assert len(steps) == min(count, MAX_COLUMNS)
    assert (steps[0], steps[-1]) == (0, count - 1)
    assert steps == sorted(set(steps))


def test_a_sheet_has_a_row_for_each_view() -> None:
    env = wrap(Blinking())
    sheet = draw_contact_sheet(env.metadata["views"], record_random_steps(env, 0, seed=0))
    assert box(sheet, RED)[0] < box(sheet, BLUE)[0]
    assert box(sheet, RED)[1] == box(sheet, BLUE)[1]


def test_the_frames_of_a_video_have_one_size_however_long_their_captions() -> None:
    short, long = (
        RecordedStep(step=step, frame=step, images={"top": plain(RED)}, reward=reward)
        for step, reward in ((1, 0.0), (10**30, 1.23456e-300))
    )
    frames = list(draw_video_frames([View("top", 10, 10)], [short, long, short]))
    assert len({frame.shape for frame in frames}) == 1
    assert np.array_equal(frames[0], frames[2])
    assert not np.array_equal(frames[0], frames[1])


@pytest.mark.parametrize("name", ["sheet.png", "a/new/folder/sheet.png"])
def test_a_saved_picture_reads_back_as_it_was(tmp_path: Path, name: str) -> None:
    picture = np.random.default_rng(0).integers(256, size=(9, 7, 3), dtype=np.uint8)
    save_image(picture, tmp_path / name)
    with PillowImage.open(tmp_path / name) as read:
        assert np.array_equal(np.asarray(read), picture)


def test_a_video_has_every_frame_and_even_sides(tmp_path: Path) -> None:
    path = tmp_path / "new" / "clip.mp4"
    colours = [RED, GREEN, BLUE, YELLOW] * 3
    write_video(path, [plain(colour, 65, 83) for colour in colours], frames_per_s=4)
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(decode, capture_output=True, check=True, timeout=120).stdout
    read = np.frombuffer(decoded, np.uint8).reshape(-1, 66, 84, 3)
    assert imageio_ffmpeg.count_frames_and_secs(path) == (len(colours), len(colours) / 4)
    assert len(read) == len(colours)
    for frame, colour in zip(read, colours, strict=True):
        assert np.abs(frame.mean((0, 1)) - colour).max() < 20  # it is compressed


def test_a_gif_has_every_frame_and_goes_on_for_ever(tmp_path: Path) -> None:
    colours = [RED, GREEN, BLUE, YELLOW] * 3
    write_video(tmp_path / "clip.gif", [plain(colour, 66, 84) for colour in colours], frames_per_s=4)
    with PillowImage.open(tmp_path / "clip.gif") as read:
        assert (read.info["duration"], read.info["loop"]) == (250, 0)
        seen = [np.asarray(frame.convert("RGB"))[30, 40].tolist() for frame in ImageSequence.Iterator(read)]
    assert seen == [list(colour) for colour in colours]


@pytest.mark.parametrize(
    ("module", "extra"), [("PIL.ImageDraw", "plots"), ("imageio.v2", "video"), ("imageio_ffmpeg", "video")]
)
def test_a_missing_package_names_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "manyview\[{extra}\]"'):
        write_video(tmp_path / "clip.mp4", [draw_grid([Row("label", [plain(RED)])])])
