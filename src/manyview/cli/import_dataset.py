"""`manyview import-dataset`: import a LeRobot dataset as demonstrations."""

from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import exit_on_error, log_progress
from manyview.cli.settings import ConfigOption, MethodOption, PresetOption, SetOption, ViewsOption
from manyview.config.resolve import resolve_config
from manyview.deploy.dataset_mapping import MappingOptions
from manyview.deploy.import_dataset import (
    Ends,
    ImportOptions,
    Rewards,
    describe_import,
    import_demonstrations,
    parse_pairs,
)
from manyview.utils.text import print_line


def import_dataset(
    dataset: Positional[Annotated[Path, arg(metavar="DATASET", help="Folder of a LeRobot dataset of version 3.")]],
    task: Positional[Annotated[str, arg(metavar="TASK", help="Task of the runs that use it.")]],
    *,
    out: Annotated[Path, arg(metavar="FOLDER", help="New folder for the demonstrations.")],
    views: ViewsOption = None,
    cameras: Annotated[
        tuple[str, ...],
        arg(metavar="VIEW=CAMERA ...", help="Cameras of the dataset whose names differ from those of the views."),
    ] = (),
    skip_cameras: Annotated[
        tuple[str, ...], arg(metavar="CAMERA ...", help="Cameras of the dataset to leave out.")
    ] = (),
    mask_missing: Annotated[bool, FlagCreatePairsOff, arg(help="Mask views that the dataset does not have.")] = False,
    state: Annotated[
        tuple[str, ...],
        arg(
            metavar="VECTOR=FEATURE[START:END] ...",
            help="Numbers of the state vectors, where names do not tell, such as joints=observation.state[0:6].",
        ),
    ] = (),
    rewards: Annotated[
        Rewards,
        arg(
            metavar="recorded|final",
            help="Rewards: the column next.reward, or 1 for the last action of each episode and 0 for all others.",
        ),
    ] = "recorded",
    ends: Annotated[
        Ends,
        arg(
            metavar="termination|timeout",
            help="Meaning of the end of an episode if the dataset has no column next.terminated.",
        ),
    ] = "termination",
    clip_actions: Annotated[
        bool, FlagCreatePairsOff, arg(help="Clip actions to the bounds of the task, however far they exceed them.")
    ] = False,
    method: MethodOption = None,
    preset: PresetOption = None,
    set: SetOption = (),  # noqa: A002
    config: ConfigOption = None,
) -> int:
    """Import a LeRobot dataset as demonstrations, which runs use with replay.demonstrations.

    Views, image size, state vectors and actions are those of the task with these settings.
    """
    with exit_on_error():
        options = ImportOptions(
            mapping=MappingOptions(
                cameras=parse_pairs(cameras, "--cameras"),
                skip_cameras=skip_cameras,
                mask_missing=mask_missing,
                state=parse_pairs(state, "--state"),
            ),
            rewards=rewards,
            ends=ends,
            clip_actions=clip_actions,
        )
        run_config = resolve_config(
            task, method=method, preset=preset, file=config, views=views, assignments=list(chain(*set))
        )
        result = import_demonstrations(dataset, run_config, out, options=options, log=log_progress)
    for line in describe_import(result, dataset):
        print_line(line)
    print_line(f"written to {out}; use it with --set replay.demonstrations={quote(str(out))}")
    return 0
