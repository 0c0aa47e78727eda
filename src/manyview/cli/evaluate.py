"""`manyview evaluate`: evaluate the agent of a run, with all or some of its cameras."""

import json
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import OwnTaskOption, exit_on_error, report_error
from manyview.envs.suite import Levels
from manyview.envs.visualization import check_video_file
from manyview.report.curves import read_curve
from manyview.report.policy_rollout import PolicyRollout, RunPlayer
from manyview.report.runs import BrokenRunError
from manyview.report.statistics import bootstrap_interval, format_mean
from manyview.training.video import write_episode_video
from manyview.utils.text import format_count, print_line


def evaluate(
    run: Positional[Annotated[Path, arg(metavar="RUN", help="Run directory; `manyview runs` lists them.")]],
    *,
    episodes: Annotated[int, arg(metavar="N", help="Number of episodes.")] = 20,
    views: Annotated[
        tuple[str, ...] | None,
        arg(
            metavar="CAMERA ...",
            help="Cameras to keep; the others are masked. <camera>_foreground follows its camera.",
            help_behavior_hint="(default: all)",
        ),
    ] = None,
    video: Annotated[
        Path | None,
        arg(
            metavar="FILE", help="Write a video of the first episode to this .mp4 or .gif file.", help_behavior_hint=""
        ),
    ] = None,
    seed: Annotated[
        int | None,
        arg(metavar="N", help="Seed of the initial states.", help_behavior_hint="(default: as in the run)"),
    ] = None,
    levels: Annotated[
        Levels | None,
        arg(
            metavar="train|test",
            help="Procgen levels: the training levels, or all levels for test.",
            help_behavior_hint="(default: train)",
        ),
    ] = None,
    own_task: OwnTaskOption = None,
    as_json: Annotated[bool, FlagCreatePairsOff, arg(name="json", help="Print a JSON object instead of text.")] = False,
) -> int:
    """Evaluate the newest checkpoint of a run without exploration noise."""
    if views is not None and not views:
        return report_error("no camera is present: expected at least one after --views")
    if seed is not None and seed < 0:
        return report_error(f"--seed must be at least 0, got {seed}")
    with exit_on_error():
        if record_video := video is not None:
            check_video_file(video)
        with RunPlayer(run, trusted_task=own_task, levels=levels) as player:
            rollout = player.play(episodes=episodes, cameras=views, seed=seed, record_video=record_video)
        if video is not None and rollout.evaluation.recording is not None:
            recording, config = rollout.evaluation.recording, rollout.config
            write_episode_video(
                video, recording, rollout.views, config=config, frames=rollout.frames, beta=rollout.beta
            )
    training_return = read_last_return(run, levels)
    if as_json:
        print(json.dumps(build_report(rollout, training_return), indent=2))
    else:
        print_report(rollout, training_return)
        if video is not None:
            print(f"written to {video}")
    return 0


def read_last_return(run: Path, levels: Levels | None) -> float | None:
    """Return the return of the last evaluation during training on these levels, or None if there is no record."""
    try:
        returns = read_curve(run, "frames", "test_levels" if levels == "test" else "evaluations").returns
    except BrokenRunError:
        return None
    return float(returns[-1]) if len(returns) else None


def build_report(rollout: PolicyRollout, training_return: float | None) -> dict[str, Any]:
    """Return the result as plain values for JSON."""
    returns = rollout.evaluation.returns
    return {
        "task": rollout.config.task,
        "method": rollout.config.method,
        "frames": rollout.frames,
        "views": list(rollout.present_views),
        "levels": rollout.levels,
        "mean": rollout.evaluation.mean_return,
        "interval": None if len(returns) < 2 else [float(end) for end in bootstrap_interval(returns)],
        "returns": returns,
        "cut": rollout.evaluation.cut,
        "last_return_in_training": training_return,
    }


def print_report(rollout: PolicyRollout, training_return: float | None) -> None:
    """Print the result as text."""
    returns, masked = rollout.evaluation.returns, [v.name for v in rollout.views if v.name not in rollout.present_views]
    print_line(f"{rollout.config.task}, {rollout.config.method}, after {rollout.frames:,} frames of training")
    print_line(
        f"views        {', '.join(rollout.present_views)}" + (f" (masked: {', '.join(masked)})" if masked else "")
    )
    if rollout.levels is not None:
        print(f"levels       {rollout.levels}")
    print(f"return       {format_mean(returns)}")
    print(
        f"             min {min(returns):z.1f}, max {max(returns):z.1f}, over {format_count(len(returns), 'episode')}"
    )
    if cut := rollout.evaluation.cut:
        limit = rollout.config.evaluation.max_steps
        print(f"cut          {format_count(cut, 'episode')} after {limit:,} steps (evaluation.max_steps of the run)")
    print(f"in training  {'no evaluation' if training_return is None else f'{training_return:z.1f}, last evaluation'}")
