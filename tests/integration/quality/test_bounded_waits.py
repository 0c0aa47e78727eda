"""No test and no helper process waits without a limit."""

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
FOLDERS = ("tests", "benchmarks", "experiments", "quality")
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
LIMITED = {"run", "check_call", "check_output", "call"}
WITHOUT_LIMIT = {"readline", "communicate"}


def unlimited(source: str) -> list[int]:
    """Lines in which a process is waited for without a limit."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of, name = node.func.value, node.func.attr
        limited = any(keyword.arg == "timeout" for keyword in node.keywords)
        by_subprocess = isinstance(of, ast.Name) and of.id == "subprocess" and name in LIMITED
        of_a_process = "process" in ast.unparse(of) and name in ("wait", "join") and not node.args
        if (by_subprocess or of_a_process or name in WITHOUT_LIMIT) and not limited:
            found.append(node.lineno)
    return found


def test_every_process_is_waited_for_with_a_limit() -> None:
    found = {str(file.relative_to(ROOT)): unlimited(file.read_text()) for file in FILES}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize("line", ["subprocess.run(x)", "a.process.wait()", "p.stdout.readline()", "process.join()"])
def test_a_wait_without_a_limit_is_seen(line: str) -> None:
    assert unlimited(line) == [1]


def test_a_child_that_says_nothing_or_dies_is_noticed() -> None:
    for code, error in (("import time; time.sleep(60)", TimeoutError), ("", ChildProcessError)):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0) as process:
            with pytest.raises(error):
                read_line(process, at_most_s=0.5 if code else 60)
            process.kill()


def test_a_row_whose_tests_hang_is_ended_with_all_that_they_started(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])  "
    began_s = perf_counter()
    status, _ = run_bounded([sys.executable, "-c", code], tmp_path, dict(os.environ), tmp_path / "said", at_most_s=0.5)
    assert status is None
    assert perf_counter() - began_s < 20


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
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.returncode == 0, ended.stdout
