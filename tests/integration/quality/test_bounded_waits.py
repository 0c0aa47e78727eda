"""Tests and helper processes wait with a timeout, and those that hang are killed."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.launcher import read_line
from quality.__main__ import run_bounded

ROOT = Path(__file__).parents[3]
DIRECTORIES = ("tests", "benchmarks", "experiments", "quality")
FILES = [file for directory in DIRECTORIES for file in sorted((ROOT / directory).rglob("*.py"))]
FUNCTIONS_WITH_TIMEOUT = {"run", "check_call", "check_output", "call"}
METHODS_WITHOUT_TIMEOUT = {"readline", "communicate"}


def find_unbounded_waits(source: str) -> list[int]:
    """Return the lines that wait for a process without a timeout."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        has_timeout = any(keyword.arg == "timeout" for keyword in node.keywords)
        is_subprocess_call = isinstance(owner, ast.Name) and owner.id == "subprocess" and name in FUNCTIONS_WITH_TIMEOUT
        is_process_wait = "process" in ast.unparse(owner) and name in ("wait", "join") and not node.args
        if (is_subprocess_call or is_process_wait or name in METHODS_WITHOUT_TIMEOUT) and not has_timeout:
            lines.append(node.lineno)
    return lines


def test_every_process_is_waited_for_with_a_limit() -> None:
    waits = {str(file.relative_to(ROOT)): find_unbounded_waits(file.read_text()) for file in FILES}
    assert {file: lines for file, lines in waits.items() if lines} == {}


@pytest.mark.parametrize("line", ["subprocess.run(x)", "a.process.wait()", "p.stdout.readline()", "process.join()"])
def test_a_wait_without_a_limit_is_found(line: str) -> None:
    assert find_unbounded_waits(line) == [1]


def test_a_silent_or_dead_child_raises_an_error() -> None:
    for code, error in (("import time; time.sleep(60)", TimeoutError), ("", ChildProcessError)):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0) as process:
            with pytest.raises(error):
                read_line(process, at_most_s=0.5 if code else 60)
            process.kill()


def test_a_hanging_row_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])  "
    start_s = perf_counter()
    status, _ = run_bounded([sys.executable, "-c", code], tmp_path, dict(os.environ), tmp_path / "said", at_most_s=0.5)
    assert status is None
    assert perf_counter() - start_s < 20


@pytest.mark.long
@pytest.mark.attack("tests of signals end also where SIGINT and SIGHUP are ignored")
@pytest.mark.quality("D6")
def test_tests_of_signals_end_where_signals_are_ignored() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/integration/durability/test_signals.py",
        "-p",
        "no:cacheprovider",
    ]
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert result.returncode == 0, result.stdout
