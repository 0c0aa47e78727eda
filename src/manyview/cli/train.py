"""`manyview train`: train an agent on a task."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import EXIT_USAGE
from manyview.cli.settings import AcceptChangesFlag, AddressOption, RunOptions
from manyview.cli.training import report_invalid_run, train_in_terminal
from manyview.config.overrides import to_plain
from manyview.session import check_address
from manyview.training import RunDir
from manyview.training.dry_run import RunEstimate, estimate_run, find_obstacle, format_estimate
from manyview.training.run_dir import default_run_path
from manyview.utils.text import print_line


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunOptions):
    """Options of `manyview train`."""

    out: Annotated[
        Path | None,
        arg(metavar="DIRECTORY", help="Run directory.", help_behavior_hint="(default: runs/TASK/METHOD/seedN)"),
    ] = None
    actors: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Collect with N actor processes on Ray (extra `scale`).",
            help_behavior_hint="(default: everything in one process)",
        ),
    ] = None
    replay_shards: Annotated[
        int | None,
        arg(
            metavar="N", help="With --actors: processes that hold the replay buffer.", help_behavior_hint="(default: 1)"
        ),
    ] = None
    learners: Annotated[
        int | None,
        arg(
            metavar="N",
            help="With --actors: learner processes, each training on a part of every batch.",
            help_behavior_hint="(default: 1)",
        ),
    ] = None
    address: AddressOption = None
    from_run: Annotated[
        Path | None,
        arg(
            name="from",
            metavar="RUN",
            help="Start from the weights of another run, with a new replay buffer and new counters.",
            help_behavior_hint="(default: schedule.initial_run)",
        ),
    ] = None
    fresh: Annotated[
        bool, FlagCreatePairsOff, arg(help="Start a new run. An existing run in the directory is renamed.")
    ] = False
    accept_changes: AcceptChangesFlag = False
    dry_run: Annotated[
        bool, FlagCreatePairsOff, arg(help="Only show the settings and the estimated time, memory and disk space.")
    ] = False


def train(
    task: Positional[
        Annotated[str, arg(metavar="TASK", help="Task, such as dmc/hopper_hop; `manyview tasks` lists all.")]
    ],
    options: Annotated[TrainOptions, arg(name="")],
) -> int:
    """Train an agent from several cameras.

    Repeat the command, or `manyview resume RUN`, to resume a run from its newest checkpoint, however it ended.
    Ctrl-C, SIGTERM or SIGHUP save a checkpoint and exit.
    """
    scale_options = {"actors": options.actors, "replay_shards": options.replay_shards, "learners": options.learners}
    overrides: dict[str, Any] = {"scale": {name: n for name, n in scale_options.items() if n is not None}}
    if options.from_run is not None:
        overrides["schedule"] = {"initial_run": str(options.from_run.absolute())}
    with report_invalid_run():
        run_config = options.resolve(task, overrides)
        run_dir = RunDir(options.out or default_run_path(run_config))
        run_dir.check_path()
        check_address(run_config, options.address)
        estimate = estimate_run(run_config) if options.dry_run else None
    if estimate is not None:
        # The machines of a cluster check their own memory.
        obstacle = None if options.address is not None else find_obstacle(estimate)
        _print_estimate(estimate, run_dir, obstacle)
        return 0 if obstacle is None else EXIT_USAGE
    return train_in_terminal(
        run_config, run_dir, address=options.address, fresh=options.fresh, accept_changes=options.accept_changes
    )


def _print_estimate(estimate: RunEstimate, run_dir: RunDir, obstacle: str | None) -> None:
    """Print the estimate and why the run will be refused, then the settings as JSON that `--config` accepts."""
    for line in format_estimate(estimate, run_dir):
        print_line(line)
    if obstacle is not None:
        print_line(f"will be refused: {obstacle}")
    print()
    print(json.dumps(to_plain(estimate.config), indent=2))
