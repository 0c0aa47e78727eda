"""What was watched, as a contact sheet or as the frames of a video."""

from collections.abc import Iterator, Sequence

from manyview.envs.look.grid import Row, draw_grid, sized
from manyview.envs.look.watch import Moment
from manyview.envs.views import Image, View

COLUMNS = 6
"""A sheet shows at most so many moments, the first and the last among them."""


def contact_sheet(
    views: Sequence[View], moments: Sequence[Moment], *, further: Sequence[Row] = (), title: str = ""
) -> Image:
    """A row for each view, a column for each moment, or for some if there are many; `further` rows below."""
    shown = spread(moments, COLUMNS)
    rows = [Row(view_label(view), [moment.pictures[view.name] for moment in shown]) for view in views]
    return draw_grid([*rows, *further], columns=[moment_label(moment) for moment in shown], title=title)


def side_by_side(
    views: Sequence[View], moments: Sequence[Moment], *, title: str = "", captions: Sequence[str] | None = None
) -> Iterator[Image]:
    """For each moment a picture of all views beside each other; all have the size of the first."""
    columns = [view_label(view) for view in views]
    size = None
    for moment, caption in zip(moments, captions or map(moment_label, moments), strict=True):
        row = Row("", [moment.pictures[view.name] for view in views])
        picture = draw_grid([row], columns=columns, title=f"{title}\n{caption}".strip())
        size = size or picture.shape[:2]
        yield sized(picture, *size)  # a longer caption must not change the size of a video


def view_label(view: View) -> str:
    if view.derived_from is None:
        return view.name
    how = "background removed\nfrom" if view.name.endswith("_foreground") else "made of"
    return f"{view.name}\n{how} {view.derived_from}"


def moment_label(moment: Moment) -> str:
    """`step 3, frame 6`, and its reward in a second line."""
    when = f"step {moment.step}" + (f", frame {moment.frame}" if moment.frame != moment.step else "")
    if moment.reward is None:
        return f"{when}\nreset"
    return f"{when}\nreward {moment.reward:.3g}" + (", end" if moment.ended else "")


def spread(moments: Sequence[Moment], most: int) -> list[Moment]:
    """At most so many of them, evenly spaced, from the first to the last."""
    count = min(most, len(moments))
    return [moments[round(index * (len(moments) - 1) / max(1, count - 1))] for index in range(count)]
