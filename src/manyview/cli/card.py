"""`manyview card`: write a run as a folder to share, with a model card."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from manyview.cli.arguments import CheckpointOption, OwnTaskOption, RunArgument, exit_on_error, log_progress
from manyview.deploy.shared_run import write_shared_run
from manyview.utils.text import print_line


def card(
    run: RunArgument,
    *,
    out: Annotated[
        Path | None,
        arg(metavar="FOLDER", help="Folder to write.", help_behavior_hint="(default: card in the run directory)"),
    ] = None,
    checkpoint: CheckpointOption = "last",
    own_task: OwnTaskOption = None,
) -> int:
    """Write a folder to share: weights, settings, curve, video, exported policy and a model card.

    The folder names no host, user or path of this machine, and `manyview evaluate` accepts it.
    """
    folder = run / "card" if out is None else out
    with exit_on_error():
        write_shared_run(run, folder, choice=checkpoint, own_task=own_task, log=log_progress)
    print_line(f"written to {folder}")
    return 0
