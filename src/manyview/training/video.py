"""Write a recorded episode as a video: all views side by side, with return, β and r̂."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from manyview.config.schema import RunConfig
from manyview.envs import View
from manyview.envs.visualization.recording import RecordedStep
from manyview.envs.visualization.video import draw_video_frames, write_video


@dataclass(frozen=True)
class EpisodeRecording:
    """Images, rewards and bonuses of one episode."""

    steps: list[RecordedStep]
    reward_int: list[float] | None
    """r̂ of each step as it is paid: among those of the episode and of MEM's feature bank, or with stored features in
    the replay buffer. None without a bonus, or without a replay buffer to search."""


def format_captions(recording: EpisodeRecording, *, beta: float) -> list[str]:
    """Return a caption for each step. β and r̂ are spelled out: Pillow's default font lacks them."""
    totals = accumulate(step.reward or 0.0 for step in recording.steps)
    bonuses: Sequence[float | None] = recording.reward_int or [None] * len(recording.steps)
    return [
        f"frame {step.frame:<6} return {total:<8.1f}"
        + ("" if bonus is None else f" beta {beta:.3g}   bonus {bonus:+.2f}")
        for step, total, bonus in zip(recording.steps, totals, bonuses, strict=True)
    ]


def write_episode_video(
    path: Path, recording: EpisodeRecording, views: Sequence[View], *, config: RunConfig, frames: int, beta: float
) -> None:
    """Write the video of an episode; `frames` is the training progress of the agent."""
    title = f"{config.task}   {config.method}   after {frames:,} frames"
    write_video(
        path, draw_video_frames(views, recording.steps, title=title, captions=format_captions(recording, beta=beta))
    )
