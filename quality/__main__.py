"""Run quality rows by id: one line per row, exit status 1 if a row falls short."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from quality.rows import ROWS, Row

ROW_S = 6 * 3600.0
"""Time limit of a row in seconds: the longest rows train for hours. Each test has its own limit too."""


@dataclass
class Outcome:
    """Outcome of the tests of one row."""

    row: Row
    figures: dict[str, float] = field(default_factory=dict)
    """Worst value of each figure over all tests of the row."""
    passed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every test passed and every bar of the row was measured and met."""
        met = all(name in self.figures and bar.is_met_by(self.figures[name]) for name, bar in self.row.bars.items())
        return self.passed > 0 and not self.failures and met

    def add(self, *, passed: bool, figures: list[tuple[str, float]], reason: str) -> None:
        for name, value in figures:
            if name not in self.row.bars:  # belongs to another row of the same test
                continue
            self.figures[name] = self.row.bars[name].choose_worse(self.figures.get(name, value), value)
        if passed:
            self.passed += 1
        else:
            self.failures.append(reason)

    def format_line(self) -> str:
        """Return the line to print, for example `S6 ok 3.1e-07 (bar 0.0001)`."""
        parts = [f"{name} {value:.3g} (bar {self.row.bars[name].value:g})" for name, value in self.figures.items()]
        num_tests = self.passed + len(self.failures)
        summary = ", ".join(part.strip() for part in parts) or f"{self.passed} of {num_tests} tests"
        # The figures already show a missed bar; print any other failure.
        errors = [text for text in self.failures if not text.startswith(f"AssertionError: {self.row.id} ")]
        return f"{self.row.id} {'ok' if self.ok else 'SHORT'} {summary}" + (f"; {errors[0]}" if errors else "")


def run(row: Row, root: Path) -> Outcome:
    """Run the tests of a row in a separate process and return their outcome."""
    outcome = Outcome(row)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.jsonl"
        report.touch()
        command = [sys.executable, "-m", "pytest", "tests", f"--quality={row.id}", f"--quality-report={report}"]
        environment = {**os.environ, "PYTEST_ADDOPTS": ""}  # user options may deselect a test
        status, output = run_bounded(command, root, environment, Path(directory) / "output", at_most_s=ROW_S)
        for line in report.read_text().splitlines():
            outcome.add(**json.loads(line))
    if status is None:
        outcome.failures.append(f"the tests did not end within {ROW_S / 3600:g} h: {output}")
    elif status != 0 and not outcome.failures:
        outcome.failures.append(f"pytest could not run the tests: {output}")
    return outcome


def run_bounded(
    command: list[str], cwd: Path, environment: dict[str, str], output: Path, *, at_most_s: float
) -> tuple[int | None, str]:
    """Run a command; kill it and all its children after `at_most_s` seconds.

    Returns the exit status, None after a timeout, and the last 4,000 characters of output. The output goes to a file:
    reading a pipe blocks as long as any descendant holds its other end.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        status = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=at_most_s)
        finally:
            if status is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=60)
    return status, output.read_text(errors="replace")[-4000:]


def main(root: Path = Path(__file__).parents[1]) -> int:
    parser = argparse.ArgumentParser(prog="python -m quality", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows to run (default: all)")
    parser.add_argument("--tier", choices=["P", "N"], help="only rows of this tier: P in the gate, N longer")
    parser.add_argument("--list", action="store_true", help="list the rows without running them")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    args = parser.parse_args()
    unknown = [id_ for id_ in args.ids if id_ not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}. Available rows: {', '.join(ROWS)}")
    rows = [ROWS[id_] for id_ in args.ids or ROWS if args.tier in (None, ROWS[id_].tier)]
    if args.list:
        for row in rows:
            print(json.dumps(asdict(row)) if args.json else f"{row.id:4} {row.tier}  {row.claim}")
        return 0
    all_ok = bool(rows)
    for row in rows:
        outcome = run(row, root)
        all_ok &= outcome.ok
        fields = {"id": row.id, "ok": outcome.ok, "figures": outcome.figures, "failures": outcome.failures}
        print(json.dumps(fields) if args.json else outcome.format_line(), flush=True)
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
