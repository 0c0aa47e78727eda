"""A filmed episode as a video: all views side by side, with return, β and r̂ as they go."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from manyview.envs import View
from manyview.envs.look.sheet import side_by_side
from manyview.envs.look.video import write_video
from manyview.train.config import RunConfig
from manyview.train.evaluation import Film


def captions(film: Film, *, beta: float) -> list[str]:
    """A line for each moment. β and r̂ in words: Pillow's own font has no such letters."""
    totals = accumulate(moment.reward or 0.0 for moment in film.moments)
    bonuses: Sequence[float | None] = film.reward_int or [None] * len(film.moments)
    return [
        f"frame {moment.frame:<6} return {total:<8.1f}"
        + ("" if bonus is None else f" beta {beta:.3g}   bonus {bonus:+.2f}")
        for moment, total, bonus in zip(film.moments, totals, bonuses, strict=True)
    ]


def write_film(path: Path, film: Film, views: Sequence[View], *, config: RunConfig, frames: int, beta: float) -> None:
    """The first episode of an agent that had trained for so many frames."""
    title = f"{config.task}   {config.method}   after {frames:,} frames"
    write_video(path, side_by_side(views, film.moments, title=title, captions=captions(film, beta=beta)))
