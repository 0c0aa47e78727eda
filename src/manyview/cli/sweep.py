"""`manyview sweep`: a night of runs by one command, and the same command again for what is left."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import FAILED, INTERRUPTED, refuse, say
from manyview.cli.runs import print_table
from manyview.report.runs import Run, summarise
from manyview.scale.cluster import connected
from manyview.scale.search import folder_of
from manyview.scale.sweep import Planned, Sweep, log_of, read_sweep, return_of

TABLE_EVERY_S = 60.0


def sweep(
    file: Positional[Annotated[Path, arg(metavar="SWEEP.toml", help="Tasks, methods, seeds and settings.")]],
    *,
    address: Annotated[
        str | None,
        arg(
            metavar="HOST:PORT",
            help="Of a Ray cluster; its machines must see the same folders.",
            help_behavior_hint="(default: this machine)",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        FlagCreatePairsOff,
        arg(help="Runs go on although versions, threads or the kind of CPU have changed, so no longer bit for bit."),
    ] = False,
    dry_run: Annotated[bool, FlagCreatePairsOff, arg(help="Only list the runs and how far each is.")] = False,
) -> int:
    """Train every combination of tasks, methods and seeds, or search for settings.

    The same command again goes on with the runs that have not finished, each from its last checkpoint.
    `manyview runs` shows them at any time.
    """
    try:
        wanted = read_sweep(file)
        planned = wanted.planned()
    except (ValueError, TypeError, OSError) as error:
        return refuse(error)
    counted = _counted(planned, summaries_of(planned))
    if wanted.search is None:
        say(f"{len(planned)} runs in {wanted.out}: {counted}")
    else:
        fields = ", ".join(wanted.search.fields)
        say(f"a search of {wanted.search.trials} trials for {fields} in {wanted.out}: {counted or 'to come'}")
    if dry_run:
        for one in planned:
            say(f"  {one.folder}")
        return 0
    try:
        with connected(address, cpus=ceil(wanted.cpus)):
            from manyview.scale.tune import run_search, run_sweep

            if wanted.search is None:
                finished = run_sweep(wanted, planned, Told(lambda: planned), accept_changes=accept_changes)
            else:
                told = Told(wanted.planned)
                finished = run_search(wanted, wanted.search, told, accept_changes=accept_changes)
    except (ImportError, ValueError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        return INTERRUPTED
    if wanted.search is not None:
        _print_best(wanted)
    elif found := summaries_of(planned):  # runs that cannot even begin have no folder
        print_table(found)
    return 0 if finished else FAILED


def _print_best(searched: Sweep) -> None:
    """The choices that have finished, the best first."""
    trials = [(return_of(searched.trial(values)), folder_of(values)) for values in searched.tried()]
    for found, name in sorted(((found, name) for found, name in trials if found is not None), reverse=True):
        say(f"{found:10.1f}  {name}")


class Told:
    """Lines for what happens, and a table now and then."""

    def __init__(self, planned: Callable[[], Sequence[Planned]]) -> None:
        self._planned, self._last_s = planned, monotonic()
        self._running: set[Path] = set()

    def begun(self, planned: Planned) -> None:
        self._running.add(planned.folder)
        self._say(planned, "begins" if not planned.folder.exists() else "goes on")

    def ended(self, planned: Planned) -> None:
        self._running.discard(planned.folder)
        found = summarise(planned.folder)
        self._say(planned, "finished" if found.last_return is None else f"finished, return {found.last_return:.1f}")

    def failed(self, planned: Planned, reason: str, *, attempts: int, given_up: bool) -> None:
        self._running.discard(planned.folder)
        what = f"given up after {attempts} attempts" if given_up else f"crashed ({attempts}), and goes on"
        self._say(planned, f"{what}: {reason}; see {os.path.relpath(log_of(planned))}")

    def tick(self) -> None:
        if monotonic() - self._last_s > TABLE_EVERY_S:
            self._last_s = monotonic()
            planned = self._planned()
            found = summaries_of(planned, begun=self._running)
            print(_counted(planned, found))
            if running := [one for one in found if one.state == "running"]:
                print_table(running)
            sys.stdout.flush()

    def _say(self, planned: Planned, what: str) -> None:
        say(f"{os.path.relpath(planned.folder)}: {what}")


def summaries_of(planned: Sequence[Planned], *, begun: Set[Path] = frozenset()) -> list[Run]:
    """As their folders tell, but for runs on other machines, of which those do not tell whether they still run."""
    found = [summarise(one.folder) for one in planned if one.folder.exists()]
    return [replace(one, state="running") if one.state == "unknown" and one.path in begun else one for one in found]


def _counted(planned: Sequence[Planned], found: Sequence[Run]) -> str:
    states = Counter[str](one.state for one in found)
    states["to come"] = len(planned) - len(found)
    return ", ".join(f"{count} {state}" for state, count in states.items() if count)
