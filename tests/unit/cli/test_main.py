"""The command `manyview`: help, version, interrupts, warnings and unknown subcommands."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from manyview.cli.main import COMMANDS, load_command, main

HEAVY_MODULES = ("torch", "numpy", "gymnasium", "matplotlib", "mujoco", "scipy", "rich")


def run_manyview(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `manyview` in a subprocess."""
    command = [sys.executable, "-m", "manyview", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)


def test_help_lists_every_subcommand_with_its_summary() -> None:
    result = run_manyview("--help")
    assert result.returncode == 0
    for name, summary in COMMANDS.items():
        assert name in result.stdout
        assert summary in result.stdout


def test_help_imports_no_heavy_module() -> None:
    code = f"""
import contextlib, sys
from manyview.cli.main import main
with contextlib.suppress(SystemExit):
    main(["--help"])
print("imported:", *(name for name in {HEAVY_MODULES!r} if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.startswith("usage: manyview")
    assert result.stdout.splitlines()[-1].strip() == "imported:"


def test_no_argument_shows_the_help() -> None:
    result = run_manyview()
    assert (result.returncode, result.stdout) == (0, run_manyview("--help").stdout)


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"manyview {version('manyview')}\n"


def test_version_works_from_the_shell() -> None:
    result = run_manyview("--version")
    assert (result.returncode, result.stdout) == (0, f"manyview {version('manyview')}\n")


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
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_ctrl_c_while_a_subcommand_is_loaded_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("manyview.cli.main.load_command", interrupt)
    assert main(["tasks"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_console_script_is_the_entry_point_that_catches_ctrl_c() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"manyview": "manyview.__main__:start"}


def test_a_warning_is_one_line_without_its_source(tmp_path: Path) -> None:
    (tmp_path / "dim.py").write_text(
        "import warnings\nfrom manyview.envs import make\n\n"
        "def make_env():\n    warnings.warn('the lamp\\nis \\x1b[2Joff')\n"
        "    return make('toy/identity_continuous', frame_stack=1).unwrapped\n"
    )
    result = run_manyview("train", "dim:make_env", "--preset", "minute", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert set(result.stderr.splitlines()) == {"warning: the lamp is  [2Joff"}


def test_an_unknown_subcommand_exits_with_2_and_names_the_known_ones() -> None:
    result = run_manyview("docter")
    assert result.returncode == 2
    assert "docter" in result.stderr
    assert result.stderr.startswith("unknown subcommand 'docter': expected one of doctor, train")
    assert result.stderr.endswith("did you mean doctor?\n")
    assert "Traceback" not in result.stderr


def test_an_option_before_the_subcommand_is_refused() -> None:
    result = run_manyview("--loud", "doctor")
    assert result.returncode == 2
    assert "--loud" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_has_a_function_and_a_help(name: str) -> None:
    assert load_command(name).__name__ == name.replace("-", "_")
    result = run_manyview(name, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: manyview {name}")
