"""Run quality rows by id: one line a row, exit status 1 if one falls short."""

import argparse
import contextlib
import io
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from quality.plugin import figures_of
from quality.rows import ROWS, Row

ROOT = Path(__file__).parents[1]


@dataclass
class Outcome:
    """What the tests of one row said."""

    row: Row
    figures: dict[str, float] = field(default_factory=dict)
    passed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.passed > 0 and not self.failures

    def line(self) -> str:
        """`S6 ok 3.1e-07 (bar 1e-04)`."""
        parts = [f"{name} {value:.3g} (bar {self.row.bars[name].value:g})" for name, value in self.figures.items()]
        said = ", ".join(part.strip() for part in parts) or f"{self.passed} of {self.passed + len(self.failures)} tests"
        # A figure past its bar explains itself; any other failure is said.
        broken = [text for text in self.failures if not text.startswith(f"AssertionError: {self.row.id} ")]
        why = f"; {broken[0]}" if broken else ""
        return f"{self.row.id} {'ok' if self.ok else 'SHORT'} {said}{why}"


class Collector:
    """Pytest plugin that files every test's result under its row."""

    def __init__(self, ids: list[str]) -> None:
        self.outcomes = {id_: Outcome(ROWS[id_]) for id_ in ids}
        self._ids: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._ids[item.nodeid] = [id_ for mark in item.iter_markers("quality") for id_ in mark.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed:
            return
        for id_ in self._ids.get(report.nodeid, []):
            if id_ not in self.outcomes:
                continue
            outcome = self.outcomes[id_]
            if report.passed:
                outcome.passed += 1
            elif report.failed:
                outcome.failures.append(_reason(report))
            for row, name, value in figures_of(report):
                if row == id_:
                    known = outcome.figures.get(name, value)
                    outcome.figures[name] = ROWS[id_].bars[name].worse(known, value)


def run(ids: list[str]) -> list[Outcome]:
    """The tests behind these rows, and what became of each row."""
    collector = Collector(ids)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(
            [str(ROOT / "tests"), f"--rootdir={ROOT}", "-p", "no:cacheprovider", f"--quality={','.join(ids)}"],
            plugins=[collector],
        )
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"pytest could not run the tests:\n{output.getvalue()}")
    return list(collector.outcomes.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m quality", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows to run; all of them if none is named")
    parser.add_argument("--tier", choices=["P", "N"], help="only rows of this tier")
    parser.add_argument("--list", action="store_true", help="list the rows that are built, run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object a row")
    asked = parser.parse_args()
    unknown = [id_ for id_ in asked.ids if id_ not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; built are {', '.join(ROWS)}")
    ids = [id_ for id_ in asked.ids or ROWS if asked.tier in (None, ROWS[id_].tier)]
    if asked.list:
        for id_ in ids:
            print(json.dumps(asdict(ROWS[id_])) if asked.json else f"{id_:4} {ROWS[id_].tier}  {ROWS[id_].claim}")
        return 0
    # Row by row: a line appears as soon as it is known, and a long row does not hold back the others.
    all_ok = bool(ids)
    for id_ in ids:
        (outcome,) = run([id_])
        all_ok &= outcome.ok
        as_json = {"id": id_, "ok": outcome.ok, "figures": outcome.figures, "failures": outcome.failures}
        print(json.dumps(as_json) if asked.json else outcome.line(), flush=True)
    return 0 if all_ok else 1


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longreprtext).strip().splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
