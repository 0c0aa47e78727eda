"""Contact sheets and videos: layout, labels, recording and files."""

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


def make_image(color: tuple[int, ...], height: int = 10, width: int = 10) -> Image:
    return np.broadcast_to(np.array(color, np.uint8), (height, width, len(color))).copy()


def find_box(sheet: Image, color: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the rectangle that has this color."""
    rows, columns = np.nonzero((sheet == color).all(-1))
    height, width = int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
    assert len(rows) == height * width
    return int(rows.min()), int(columns.min()), height, width


def make_records(*images: Image | None) -> list[RecordedStep]:
    return [RecordedStep(step=step, frame=step, images={"top": image}) for step, image in enumerate(images)]


def make_half_black_image(color: tuple[int, ...]) -> Image:
    """Return a half black image: an image of a single color would give a warning."""
    return np.concatenate([make_image(color, 16, 8), make_image((0, 0, 0), 16, 8)], axis=1)


class BlinkingCameraEnv(MultiViewEnv):
    """Environment whose second camera is absent at every other step."""

    def __init__(self) -> None:
        super().__init__([View("top", 16, 16), View("side", 16, 16)], spaces.Discrete(2))
        self._step = 0

    def _observe(self) -> Observation:
        return self.observe(
            {"top": make_half_black_image(RED), "side": make_half_black_image(BLUE) if self._step % 2 == 0 else None}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._step += 1
        return self._observe(), 0.5, False, self._step == 4, {"frames": 2}


# Grid


def test_images_are_placed_in_rows_and_columns_and_enlarged_by_an_integer() -> None:
    rows = [Row("one", [make_image(RED), make_image(GREEN)]), Row("two", [make_image(BLUE), make_image(YELLOW)])]
    sheet = draw_grid(rows, column_labels=["a", "b"], title="all", cell_px=25)
    boxes = {color: find_box(sheet, color) for color in (RED, GREEN, BLUE, YELLOW)}
    assert {box[2:] for box in boxes.values()} == {(30, 30)}
    assert boxes[RED][0] == boxes[GREEN][0] < boxes[BLUE][0] == boxes[YELLOW][0]
    assert boxes[RED][1] == boxes[BLUE][1] < boxes[GREEN][1] == boxes[YELLOW][1]


def test_a_large_image_keeps_its_pixels() -> None:
    image = np.random.default_rng(0).integers(256, size=(40, 60, 3), dtype=np.uint8)
    sheet = draw_grid([Row("", [image])], cell_px=30)
    positions = product(range(sheet.shape[0] - 39), range(sheet.shape[1] - 59))
    assert any(np.array_equal(sheet[y : y + 40, x : x + 60], image) for y, x in positions)


def test_images_of_different_sizes_and_channels_share_a_sheet() -> None:
    rows = [Row("", [make_image(RED, 30, 10)]), Row("", [make_image((77,), 10, 30)])]
    sheet = draw_grid(rows, cell_px=10)
    assert find_box(sheet, RED)[2:] == (30, 10)
    assert find_box(sheet, (77, 77, 77))[2:] == (10, 30)


def test_a_white_image_has_a_border() -> None:
    sheet = draw_grid([Row("", [make_image((255, 255, 255))])], cell_px=10)
    assert (sheet != 255).any()


def test_an_absent_image_is_crossed_out() -> None:
    sheet = draw_grid([Row("", [make_image(RED), None, make_image(GREEN)])], cell_px=10)
    left, right = find_box(sheet, RED)[1] + 10, find_box(sheet, GREEN)[1]
    between = sheet[10:18, left + 2 : right - 2]
    assert right - left > 10
    assert len(np.unique(between.reshape(-1, 3), axis=0)) >= 3  # background, cell and cross


def test_a_sheet_may_consist_of_absent_images() -> None:
    assert draw_grid([Row("gone", [None, None])], cell_px=20).shape[1] > 40


def test_labels_enlarge_the_sheet_and_cover_no_image() -> None:
    unlabeled_sheet = draw_grid([Row("", [make_image(RED)])])
    labeled_sheet = draw_grid(
        [Row("a label of some length", [make_image(RED)])], column_labels=["two\nlines"], title="title"
    )
    assert labeled_sheet.shape[0] > unlabeled_sheet.shape[0]
    assert labeled_sheet.shape[1] > unlabeled_sheet.shape[1]
    assert find_box(labeled_sheet, RED)[2:] == find_box(unlabeled_sheet, RED)[2:]
    ink = (labeled_sheet.max(-1) < 100) & ~(labeled_sheet == RED).all(-1)
    top, left = find_box(labeled_sheet, RED)[:2]
    assert ink[:top].any()
    assert ink[top:, :left].any()
    assert not ink[top:, left:].any()


# Recording


def test_the_same_seed_records_the_same_images() -> None:
    env = make("toy/identity")
    first, repeated, other = (record_random_steps(env, 8, seed=seed) for seed in (3, 3, 4))

    def get_image_bytes(records: list[RecordedStep]) -> list[bytes]:
        return [image.tobytes() for record in records for image in record.images.values() if image is not None]

    assert get_image_bytes(first) == get_image_bytes(repeated) != get_image_bytes(other)


def test_the_newest_frame_of_a_stack_is_recorded() -> None:
    stacked_records, single_records = (
        record_random_steps(make("toy/identity", frame_stack=frames), 8, seed=0) for frames in (3, 1)
    )
    for stacked, single in zip(stacked_records, single_records, strict=True):
        assert all(np.array_equal(stacked.images[name], single.images[name]) for name in ("upright", "lying"))  # type: ignore[arg-type]


def test_a_recording_continues_with_the_next_episode() -> None:
    records = record_random_steps(wrap(BlinkingCameraEnv()), 6, seed=0)
    assert [record.step for record in records] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert [record.step for record in records if record.is_last] == [4]
    assert [record.step for record in records if record.reward is None] == [0, 0]


def test_an_absent_view_has_no_image_and_a_lower_presence() -> None:
    env: gym.Env[Observation, Any] = wrap(BlinkingCameraEnv(), frame_stack=2)
    records = record_random_steps(env, 3, seed=0)
    assert [record.images["side"] is None for record in records] == [False, True, False, True]
    top, side = summarize_views(env.metadata["views"], records)
    assert (top.present_fraction, side.present_fraction) == (1.0, 0.5)
    assert top.brightness == side.brightness == pytest.approx(85 / 2)


def test_a_view_that_is_always_absent_has_no_brightness() -> None:
    (summary,) = summarize_views([View("top", 4, 4)], make_records(None, None))
    assert (summary.brightness, summary.present_fraction) == (None, 0.0)


def test_frames_count_the_repeated_action() -> None:
    records = record_random_steps(wrap(BlinkingCameraEnv()), 3, seed=0)
    assert [record.frame for record in records] == [0, 2, 4, 6]
    assert format_step_label(records[0]) == "step 0\nreset"
    assert format_step_label(records[1]) == "step 1, frame 2\nreward 0.5"
    assert compute_median_step_ms(records) > 0


def test_the_end_of_an_episode_is_labeled() -> None:
    assert (
        format_step_label(RecordedStep(step=4, frame=4, images={}, reward=1.0, is_last=True)) == "step 4\nreward 1, end"
    )


def test_the_label_of_a_derived_view_names_its_camera() -> None:
    derived = View("side_foreground", 8, 8, derived_from="side")
    assert format_view_label(derived) == "side_foreground\nbackground removed\nfrom side"
    assert format_view_label(View("screen_crop", 8, 8, derived_from="screen")) == "screen_crop\nderived from screen"


def test_fault_rows_show_every_kind_of_fault() -> None:
    env = make("toy/identity", frame_stack=1)
    healthy_images = [record.images["upright"] for record in record_random_steps(env, MAX_COLUMNS - 1, seed=0)]
    rows = {row.label: row.images for row in render_fault_rows(env, MAX_COLUMNS - 1, seed=0)}
    assert list(rows) == [f"upright\n{kind}, from step 1" for kind in ("black", "frozen", "noise", "late by 1", "gone")]
    black, frozen, noise, late, gone = rows.values()
    for images in rows.values():
        assert np.array_equal(images[0], healthy_images[0])  # type: ignore[arg-type]
    assert not np.any(black[1:])  # type: ignore[arg-type]
    assert all(np.array_equal(image, healthy_images[0]) for image in frozen)  # type: ignore[arg-type]
    assert np.array_equal(late[1:], healthy_images[:-1])  # type: ignore[arg-type]
    assert gone[1:] == [None] * (MAX_COLUMNS - 1)
    assert len({image.tobytes() for image in noise if image is not None}) == MAX_COLUMNS


# Contact sheets and videos


@pytest.mark.parametrize("count", [1, 2, MAX_COLUMNS, MAX_COLUMNS + 1, 100])
def test_a_sheet_shows_the_first_and_the_last_step_and_few_between(count: int) -> None:
    records = make_records(*[make_image(RED)] * count)
    steps = [record.step for record in subsample_steps(records, MAX_COLUMNS)]
    assert len(steps) == min(count, MAX_COLUMNS)
    assert (steps[0], steps[-1]) == (0, count - 1)
    assert steps == sorted(set(steps))


def test_a_sheet_has_a_row_for_each_view() -> None:
    env = wrap(BlinkingCameraEnv())
    sheet = draw_contact_sheet(env.metadata["views"], record_random_steps(env, 0, seed=0))
    assert find_box(sheet, RED)[0] < find_box(sheet, BLUE)[0]
    assert find_box(sheet, RED)[1] == find_box(sheet, BLUE)[1]


def test_the_frames_of_a_video_have_one_size_however_long_their_captions() -> None:
    short, long = (
        RecordedStep(step=step, frame=step, images={"top": make_image(RED)}, reward=reward)
        for step, reward in ((1, 0.0), (10**30, 1.23456e-300))
    )
    frames = list(draw_video_frames([View("top", 10, 10)], [short, long, short]))
    assert len({frame.shape for frame in frames}) == 1
    assert np.array_equal(frames[0], frames[2])
    assert not np.array_equal(frames[0], frames[1])


@pytest.mark.parametrize("name", ["sheet.png", "a/new/folder/sheet.png"])
def test_a_saved_image_is_read_back_unchanged(tmp_path: Path, name: str) -> None:
    image = np.random.default_rng(0).integers(256, size=(9, 7, 3), dtype=np.uint8)
    save_image(image, tmp_path / name)
    with PillowImage.open(tmp_path / name) as saved_image:
        assert np.array_equal(np.asarray(saved_image), image)


def test_a_video_has_every_frame_and_even_sides(tmp_path: Path) -> None:
    path = tmp_path / "new" / "clip.mp4"
    colors = [RED, GREEN, BLUE, YELLOW] * 3
    write_video(path, [make_image(color, 65, 83) for color in colors], frames_per_s=4)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    frames = np.frombuffer(pixels, np.uint8).reshape(-1, 66, 84, 3)
    assert imageio_ffmpeg.count_frames_and_secs(path) == (len(colors), len(colors) / 4)
    assert len(frames) == len(colors)
    for frame, color in zip(frames, colors, strict=True):
        assert np.abs(frame.mean((0, 1)) - color).max() < 20  # lossy compression


def test_a_gif_has_every_frame_and_loops_forever(tmp_path: Path) -> None:
    colors = [RED, GREEN, BLUE, YELLOW] * 3
    write_video(tmp_path / "clip.gif", [make_image(color, 66, 84) for color in colors], frames_per_s=4)
    with PillowImage.open(tmp_path / "clip.gif") as gif:
        assert (gif.info["duration"], gif.info["loop"]) == (250, 0)
        frame_colors = [np.asarray(frame.convert("RGB"))[30, 40].tolist() for frame in ImageSequence.Iterator(gif)]
    assert frame_colors == [list(color) for color in colors]


@pytest.mark.parametrize(
    ("module", "extra"), [("PIL.ImageDraw", "plots"), ("imageio.v2", "video"), ("imageio_ffmpeg", "video")]
)
def test_a_missing_package_names_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "manyview\[{extra}\]"'):
        write_video(tmp_path / "clip.mp4", [draw_grid([Row("label", [make_image(RED)])])])
