"""The command itself, run as a person would run it."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from manyview.cli.main import COMMANDS, load_command, main

HEAVY = ("torch", "numpy", "gymnasium", "matplotlib", "mujoco", "scipy", "rich")


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "manyview", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)


def test_help_lists_every_subcommand_with_its_summary() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for name, summary in COMMANDS.items():
        assert name in shown.stdout
        assert summary in shown.stdout


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import contextlib, sys
from manyview.cli.main import main
with contextlib.suppress(SystemExit):
    main(["--help"])
print("imported:", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.startswith("usage: manyview")
    assert shown.stdout.splitlines()[-1].strip() == "imported:"


def test_no_argument_shows_the_help() -> None:
    shown = run()
    assert (shown.returncode, shown.stdout) == (0, run("--help").stdout)


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"manyview {version('manyview')}\n"


def test_version_works_from_the_shell() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"manyview {version('manyview')}\n")


def test_ctrl_c_during_the_import_ends_the_command_without_a_traceback() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "tyro":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from manyview.__main__ import start
sys.exit(start())
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "")


def test_ctrl_c_while_a_subcommand_is_loaded_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("manyview.cli.main.load_command", interrupt)
    assert main(["tasks"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_console_script_is_the_entry_point_that_catches_it() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"manyview": "manyview.__main__:start"}


def test_a_warning_is_a_line_without_the_place_that_raised_it(tmp_path: Path) -> None:
    (tmp_path / "dim.py").write_text(
        "import warnings\nfrom manyview.envs import make\n\n"
        "def make_env():\n    warnings.warn('the lamp\\nis \\x1b[2Joff')\n"
        "    return make('toy/identity_continuous', frame_stack=1).unwrapped\n"
    )
    shown = run("train", "dim:make_env", "--preset", "minute", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert set(shown.stderr.splitlines()) == {"warning: the lamp is  [2Joff"}


def test_an_unknown_subcommand_exits_with_2_and_names_those_there_are() -> None:
    shown = run("docter")
    assert shown.returncode == 2
    assert "docter" in shown.stderr
    assert shown.stderr.startswith("unknown subcommand 'docter': expected one of doctor, train")
    assert shown.stderr.endswith("did you mean doctor?\n")
    assert "Traceback" not in shown.stderr


def test_an_option_before_the_subcommand_is_refused() -> None:
    shown = run("--loud", "doctor")
    assert shown.returncode == 2
    assert "--loud" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_has_a_function_of_its_name_and_a_help_of_its_own(name: str) -> None:
    assert load_command(name).__name__ == name.replace("-", "_")
    shown = run(name, "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"usage: manyview {name}")
