"""Run the attacks on manyview: hostile files, kills, hung parts, misbehaving environments.

    python -m benchmarks.attacks                     the attacks of the gate, at most 90 s
    python -m benchmarks.attacks --all               also the slow and long attacks
    python -m benchmarks.attacks --all --record results/attacks.jsonl
    python -m benchmarks.attacks --list

An attack is a test with the mark `attack("<claim>")`; tests with the same claim are one attack. The output has one line
per attack: verdict, seconds, quality rows and claim. The exit status is 1 if a claim does not hold.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass
class Attack:
    """Outcome of all tests with the same claim."""

    claim: str
    rows: set[str] = field(default_factory=set)
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        return self.passed > 0 and not self.failures

    def format_line(self) -> str:
        verdict = "held" if self.held else "BROKE"
        rows = ",".join(sorted(self.rows)) or "-"
        return f"{verdict:<5} {self.seconds:6.1f} s  {rows:<6} {self.claim}" + "".join(
            f"\n      {f}" for f in self.failures
        )


class AttackPlugin:
    """Pytest plugin that collects outcomes by attack."""

    def __init__(self) -> None:
        self.attacks: dict[str, Attack] = {}
        self._claims: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("attack"):
                attack = self.attacks.setdefault(mark.args[0], Attack(mark.args[0]))
                attack.rows |= {row for quality in item.iter_markers("quality") for row in quality.args}
                self._claims[item.nodeid] = attack.claim

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        claim = self._claims.get(report.nodeid.split("@")[0])  # xdist appends the group
        if claim is None:
            return
        attack = self.attacks[claim]
        attack.seconds += report.duration
        if report.failed or (report.skipped and report.when != "teardown"):
            attack.failures.append(f"{report.outcome}: {report.nodeid}")
        elif report.when == "call":
            attack.passed += 1


def run(*, everything: bool, list_only: bool, keyword: str = "") -> tuple[int, list[Attack]]:
    """Run pytest on the marked tests and return its exit status and the outcome of each attack."""
    marks = "attack" if everything else "attack and not slow and not long"
    plugin = AttackPlugin()
    options = ["-m", marks, "-q", "--tb=short", "-p", "no:cacheprovider"]
    options += ["-k", keyword] if keyword else []
    options += ["--collect-only"] if list_only else []
    output = StringIO()
    with redirect_stdout(output):
        status = pytest.main([*options, f"--rootdir={ROOT}", str(ROOT / "tests")], plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
    return int(status), list(plugin.attacks.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also run the slow and long attacks")
    parser.add_argument("--list", action="store_true", help="list the attacks without running them")
    parser.add_argument("-k", default="", metavar="WORD", help="run only tests whose name contains this, as in pytest")
    parser.add_argument("--record", type=Path, metavar="JSONL", help="write the outcome of each attack to a file")
    args = parser.parse_args(arguments)
    status, attacks = run(everything=args.all, list_only=args.list, keyword=args.k)
    if args.list:
        for attack in attacks:
            print(f"{','.join(sorted(attack.rows)) or '-':<6} {attack.claim}")
        return 0
    for attack in attacks:
        print(attack.format_line())
    held = sum(attack.held for attack in attacks)
    print(f"{held} of {len(attacks)} attacks held, {sum(attack.seconds for attack in attacks):.0f} s")
    if args.record is not None:
        rows = (
            {"attack": a.claim, "rows": sorted(a.rows), "held": a.held, "seconds": round(a.seconds, 1)} for a in attacks
        )
        args.record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0 if attacks and held == len(attacks) and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
