"""Report of an acceptance, as JSON and as Markdown."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyview.training.acceptance import Acceptance, SectionResult
from manyview.training.loggers import replace_non_finite
from manyview.utils.atomic_io import write_atomic
from manyview.utils.json_io import dump_json


def write_report(path: Path, acceptance: Acceptance, results: Sequence[SectionResult]) -> None:
    """Write the results as JSON to `path` and as Markdown beside it."""
    report = {"device": str(acceptance.device), "quick": acceptance.quick}
    plain = replace_non_finite({**report, "sections": [asdict(result) for result in results]})
    write_atomic(path, [dump_json(plain)])
    write_atomic(path.with_suffix(".md"), [format_report(acceptance, results).encode()])


def format_report(acceptance: Acceptance, results: Sequence[SectionResult]) -> str:
    """Return the results as Markdown: a table of all sections, then the figures of each."""
    note = " (quick: small sizes, scores not checked)" if acceptance.quick else ""
    lines = [
        f"# Acceptance on {acceptance.device}{note}",
        "",
        "| section | status | seconds | reason |",
        "|---|---|---|---|",
    ]
    lines += [f"| {result.name} | {result.status} | {result.seconds:.1f} | {result.reason} |" for result in results]
    for result in (result for result in results if result.figures):
        lines += ["", f"## {result.name}", "", result.title, "", "| figure | value |", "|---|---|"]
        lines += [f"| {name} | {_format_figure(value)} |" for name, value in result.figures.items()]
    return "\n".join(lines) + "\n"


def _format_figure(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_figure(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
