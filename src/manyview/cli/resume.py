"""`manyview resume` and `manyview extend`: train a run on with its own settings."""

from typing import Annotated

from tyro.conf import arg

from manyview.cli.arguments import OwnTaskOption, RunArgument
from manyview.cli.settings import AcceptChangesFlag, AddressOption
from manyview.cli.training import report_invalid_run, train_in_terminal
from manyview.training import RunDir
from manyview.training.resume import extend_run
from manyview.training.saved_agent import check_trusted_task


def resume(
    run: RunArgument,
    *,
    own_task: OwnTaskOption = None,
    address: AddressOption = None,
    accept_changes: AcceptChangesFlag = False,
) -> int:
    """Resume a run from its newest checkpoint, however it ended; a finished one stays as it is."""
    run_dir = RunDir(run)
    with report_invalid_run():
        config = run_dir.read_config()
        check_trusted_task(config.task, own_task)
    return train_in_terminal(config, run_dir, address=address, accept_changes=accept_changes)


def extend(
    run: RunArgument,
    *,
    frames: Annotated[int, arg(metavar="N", help="New length of the run in simulator frames, those so far included.")],
    own_task: OwnTaskOption = None,
    address: AddressOption = None,
    accept_changes: AcceptChangesFlag = False,
) -> int:
    """Train a finished or stopped run to a new total of frames.

    No schedule depends on the length of a run: the result is that of a run that had this length from the start.
    """
    run_dir = RunDir(run)
    with report_invalid_run():
        check_trusted_task(run_dir.read_config().task, own_task)
        config = extend_run(run_dir, frames)
    return train_in_terminal(config, run_dir, address=address, accept_changes=accept_changes)
