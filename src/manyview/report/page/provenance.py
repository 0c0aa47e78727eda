"""Settings with their differences, versions, and the command of each run."""

import json
from collections.abc import Iterator, Sequence

from manyview.report.comparison import MAX_ROWS, format_value, leave_out_parts, list_differences
from manyview.report.material import RunMaterial
from manyview.report.page.html import Html, make_code, make_details, make_element, make_table
from manyview.report.ranking import MethodRuns

MAX_COLUMNS = 12
"""Methods in the table of differing settings; more do not fit on a screen."""


def write_settings(groups: Sequence[MethodRuns]) -> Iterator[Html]:
    """Yield the settings in which methods of a task differ, and all settings of each method."""
    for task in dict.fromkeys(group.task for group in groups):
        methods = [group for group in groups if group.task == task]
        yield make_element("h3", task)
        yield _write_differences(task, methods)
        for group in methods:
            text = json.dumps(group.runs[0].settings, indent=1, ensure_ascii=False)
            summary = f"All settings of {group.label} (of {group.runs[0].name})"
            yield make_details(summary, make_code(text))


def write_versions(runs: Sequence[RunMaterial]) -> Iterator[Html]:
    """Yield software and hardware that all runs share, and those in which they differ."""
    names = sorted({name for run in runs for name in run.versions})
    differences = {row.name: row.values for row in list_differences([run.versions for run in runs])}
    shared = [[name, format_value(runs[0].versions[name])] for name in names if name not in differences]
    if shared:
        yield make_table("Software and hardware that all runs share.", ("name", "version or value"), shared)
    if differences:
        yield make_table(
            "Software and hardware in which runs differ.",
            ("run", *differences),
            (
                [run.name, *(format_value(values[number]) for values in differences.values())]
                for number, run in enumerate(runs)
            ),
        )
    if not names:
        yield make_element("p", "No run has recorded its versions.")


def write_commands(runs: Sequence[RunMaterial]) -> Iterator[Html]:
    """Yield the command that trains each run again."""
    for run in runs:
        yield make_element("h4", run.name)
        yield make_code(run.command)


def _write_differences(task: str, methods: Sequence[MethodRuns]) -> Html:
    shown = methods[:MAX_COLUMNS]
    differences = leave_out_parts(list_differences([group.runs[0].settings for group in shown]))
    if len(methods) < 2 or not differences:
        return make_element("p", "All methods have equal settings." if len(methods) > 1 else "There is one method.")
    note = f" The first {len(shown)} of {len(methods)} methods." if len(shown) < len(methods) else ""
    note += f" The first {MAX_ROWS} of {len(differences)} settings." if len(differences) > MAX_ROWS else ""
    return make_table(
        f"Settings in which the methods differ on {task}. Those of a part that the other methods lack are below.{note}",
        ("setting", *(group.label for group in shown)),
        ([row.name, *(format_value(value) for value in row.values)] for row in differences[:MAX_ROWS]),
    )
