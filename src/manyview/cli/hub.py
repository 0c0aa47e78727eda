"""`manyview hub`: push runs to the Hugging Face hub and pull them."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import CheckpointOption, OwnTaskOption, exit_on_error, log_progress, report_error
from manyview.deploy.hub import pull_run, push_run
from manyview.utils.text import print_line


def hub(
    action: Positional[Annotated[Literal["push", "pull"], arg(metavar="push|pull", help="What to do.")]],
    names: Positional[
        Annotated[
            tuple[str, ...],
            arg(metavar="[RUN] USER/NAME", help="With push, the run directory first; then the repository on the hub."),
        ]
    ],
    *,
    private: Annotated[
        bool, FlagCreatePairsOff, arg(help="With push: create a repository that only you can see.")
    ] = False,
    checkpoint: CheckpointOption = "last",
    out: Annotated[
        Path | None,
        arg(
            metavar="DIRECTORY",
            help="With pull: folder to write.",
            help_behavior_hint="(default: runs/hub/USER/NAME)",
        ),
    ] = None,
    revision: Annotated[
        str | None,
        arg(
            metavar="R",
            help="With pull: branch, tag or commit.",
            help_behavior_hint="(default: the default branch)",
        ),
    ] = None,
    own_task: OwnTaskOption = None,
) -> int:
    """Push a run to the Hugging Face hub, or pull one.

    `push` writes the folder of `manyview card` and uploads it.
    `pull` downloads such a folder; `manyview evaluate`, `manyview.load` and `train --from` accept it.
    """
    if len(names) != (2 if action == "push" else 1):
        expected = "RUN USER/NAME" if action == "push" else "USER/NAME"
        return report_error(f"wrong arguments of hub {action}: expected {expected}, got {' '.join(names) or 'none'}")
    with exit_on_error():
        if action == "push":
            run, repository = names
            address = push_run(
                Path(run), repository, private=private, choice=checkpoint, own_task=own_task, log=log_progress
            )
            print_line(f"pushed to {address}")
        else:
            print_line(f"written to {pull_run(names[0], out, revision=revision, log=log_progress)}")
    return 0
