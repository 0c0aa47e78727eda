"""`manyview export-dataset`: write episodes of a run as a LeRobot dataset."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from manyview.cli.arguments import OwnTaskOption, exit_on_error, log_progress
from manyview.deploy.export_dataset import write_dataset
from manyview.report.statistics import format_mean
from manyview.utils.text import format_count, print_line


def export_dataset(
    run: Positional[Annotated[Path, arg(metavar="RUN", help="Run directory; `manyview runs` lists them.")]],
    *,
    out: Annotated[Path, arg(metavar="FOLDER", help="New folder for the dataset.")],
    episodes: Annotated[int, arg(metavar="N", help="Number of episodes.")] = 20,
    fps: Annotated[
        float | None,
        arg(metavar="HZ", help="Frames per second.", help_behavior_hint="(default: rate of the environment, or 15)"),
    ] = None,
    seed: Annotated[
        int | None,
        arg(metavar="N", help="Seed of the initial states.", help_behavior_hint="(default: as in the run)"),
    ] = None,
    own_task: OwnTaskOption = None,
) -> int:
    """Play episodes with the newest checkpoint of a run and write them as a LeRobot dataset of version 3.

    Actions are in the units of the environment, without exploration noise.
    """
    with exit_on_error():
        result = write_dataset(run, out, episodes=episodes, fps=fps, seed=seed, own_task=own_task, log=log_progress)
    print_line(f"return       {format_mean(result.returns)}")
    print_line(f"frames       {result.num_frames:,} of {format_count(len(result.returns), 'episode')}")
    print_line(f"rate         {result.fps:g} per second")
    if result.left_out:
        print_line(f"left out     {', '.join(result.left_out)}: computed from a camera")
    print_line(f"written to {out}")
    return 0
