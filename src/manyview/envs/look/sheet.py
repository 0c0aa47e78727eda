"""What was watched, as a contact sheet or as the frames of a video."""

from collections.abc import Iterator, Sequence

from manyview.envs.look.grid import Row, draw_grid, pad_or_crop
from manyview.envs.look.watch import RecordedStep
from manyview.envs.views import Image, View

MAX_COLUMNS = 6
"""A sheet shows at most so many moments, the first and the last among them."""


def draw_contact_sheet(
    views: Sequence[View], steps: Sequence[RecordedStep], *, extra_rows: Sequence[Row] = (), title: str = ""
) -> Image:
    """A row for each view, a column for each moment, or for some if there are many; `further` rows below."""
    shown = subsample_steps(steps, MAX_COLUMNS)
    rows = [Row(format_view_label(view), [moment.images[view.name] for moment in shown]) for view in views]
    return draw_grid([*rows, *extra_rows], column_labels=[format_step_label(moment) for moment in shown], title=title)


def draw_video_frames(
    views: Sequence[View], steps: Sequence[RecordedStep], *, title: str = "", captions: Sequence[str] | None = None
) -> Iterator[Image]:
    """For each moment a picture of all views beside each other; all have the size of the first."""
    columns = [format_view_label(view) for view in views]
    size = None
    for moment, caption in zip(steps, captions or map(format_step_label, steps), strict=True):
        row = Row("", [moment.images[view.name] for view in views])
        image = draw_grid([row], column_labels=columns, title=f"{title}\n{caption}".strip())
        size = size or image.shape[:2]
        yield pad_or_crop(image, *size)  # a longer caption must not change the size of a video


def format_view_label(view: View) -> str:
    if view.derived_from is None:
        return view.name
    how = "background removed\nfrom" if view.name.endswith("_foreground") else "made of"
    return f"{view.name}\n{how} {view.derived_from}"


def format_step_label(step: RecordedStep) -> str:
    """`step 3, frame 6`, and its reward in a second line."""
    when = f"step {step.step}" + (f", frame {step.frame}" if step.frame != step.step else "")
    if step.reward is None:
        return f"{when}\nreset"
    return f"{when}\nreward {step.reward:.3g}" + (", end" if step.is_last else "")


def subsample_steps(steps: Sequence[RecordedStep], max_count: int) -> list[RecordedStep]:
    """At most so many of them, evenly spaced, from the first to the last."""
    count = min(max_count, len(steps))
    return [steps[round(index * (len(steps) - 1) / max(1, count - 1))] for index in range(count)]
