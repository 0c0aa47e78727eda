"""Run quality rows by id: one line a row, exit status 1 if one falls short."""

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
"""The longest rows train for hours; each test has a limit of its own beside this."""


@dataclass
class Outcome:
    """What the tests of one row said."""

    row: Row
    figures: dict[str, float] = field(default_factory=dict)
    """The worst value of each figure, over all tests of the row."""
    passed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every test passed, and every bar of the row was measured and met."""
        met = all(name in self.figures and bar.met_by(self.figures[name]) for name, bar in self.row.bars.items())
        return self.passed > 0 and not self.failures and met

    def add(self, *, passed: bool, figures: list[tuple[str, float]], reason: str) -> None:
        for name, value in figures:
            if name not in self.row.bars:  # of another row that the same test shows
                continue
            self.figures[name] = self.row.bars[name].worse(self.figures.get(name, value), value)
        if passed:
            self.passed += 1
        else:
            self.failures.append(reason)

    def line(self) -> str:
        """`S6 ok 3.1e-07 (bar 0.0001)`."""
        parts = [f"{name} {value:.3g} (bar {self.row.bars[name].value:g})" for name, value in self.figures.items()]
        said = ", ".join(part.strip() for part in parts) or f"{self.passed} of {self.passed + len(self.failures)} tests"
        # A figure past its bar explains itself; any other failure is said.
        broken = [text for text in self.failures if not text.startswith(f"AssertionError: {self.row.id} ")]
        return f"{self.row.id} {'ok' if self.ok else 'SHORT'} {said}" + (f"; {broken[0]}" if broken else "")


def run(row: Row, root: Path) -> Outcome:
    """The tests behind a row, in a process of their own, and what became of them."""
    outcome = Outcome(row)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        report.touch()
        command = [sys.executable, "-m", "pytest", "tests", f"--quality={row.id}", f"--quality-report={report}"]
        environment = {**os.environ, "PYTEST_ADDOPTS": ""}  # nobody's habits may leave a test out
        status, said = run_bounded(command, root, environment, Path(folder) / "output", at_most_s=ROW_S)
        for line in report.read_text().splitlines():
            outcome.add(**json.loads(line))
    if status is None:
        outcome.failures.append(f"the tests did not end within {ROW_S / 3600:g} h: {said}")
    elif status != 0 and not outcome.failures:
        outcome.failures.append(f"pytest could not run the tests: {said}")
    return outcome


def run_bounded(
    command: list[str], cwd: Path, environment: dict[str, str], output: Path, *, at_most_s: float
) -> tuple[int | None, str]:
    """Run a command and everything it starts; its status, None if it was ended, and the last it wrote.

    It writes to a file: a pipe would be waited for as long as any process that it started holds the other end.
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
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows to run; all of them if none is named")
    parser.add_argument("--tier", choices=["P", "N"], help="only rows of this tier")
    parser.add_argument("--list", action="store_true", help="list the rows that are built, run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object a row")
    asked = parser.parse_args()
    unknown = [id_ for id_ in asked.ids if id_ not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; built are {', '.join(ROWS)}")
    rows = [ROWS[id_] for id_ in asked.ids or ROWS if asked.tier in (None, ROWS[id_].tier)]
    if asked.list:
        for row in rows:
            print(json.dumps(asdict(row)) if asked.json else f"{row.id:4} {row.tier}  {row.claim}")
        return 0
    all_ok = bool(rows)
    for row in rows:
        outcome = run(row, root)
        all_ok &= outcome.ok
        fields = {"id": row.id, "ok": outcome.ok, "figures": outcome.figures, "failures": outcome.failures}
        print(json.dumps(fields) if asked.json else outcome.line(), flush=True)
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
