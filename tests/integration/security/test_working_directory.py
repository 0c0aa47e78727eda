"""Files beside a run or in the working directory are not executed, except the user's own task."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyview import make, make_vector
from manyview.cli.main import main
from tests.support.corrupted_run import CorruptedRun

OPTIONAL_MODULES = ("triton", "gmpy2", "colorama", "tabulate", "torch", "numpy", "typing", "csv", "sitecustomize")
"""Modules that installed packages import, some of them only if they exist."""
HOSTILE_CODE = "open('hit', 'a').write(__name__)\n"
NO_EXECUTION = pytest.mark.attack("no file in the working directory is executed but the user's own task")
TASK_IMPORTS = pytest.mark.attack("a task of the user's own imports what lies beside it, and installed packages do not")


def write_hostile_modules(directory: Path) -> None:
    """Write modules with `HOSTILE_CODE` to a directory."""
    for name in OPTIONAL_MODULES:
        (directory / f"{name}.py").write_text(HOSTILE_CODE)


@NO_EXECUTION
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    "python_options", [[], pytest.param(["-P"], marks=pytest.mark.long)], ids=["-m", "console script"]
)
def test_evaluating_a_run_executes_nothing_that_lies_beside_it(
    corrupted_run: CorruptedRun, python_options: list[str]
) -> None:
    write_hostile_modules(corrupted_run.run_dir.path)
    command = [sys.executable, *python_options, "-m", "manyview", "evaluate", ".", "--episodes", "1"]
    result = subprocess.run(command, cwd=corrupted_run.run_dir.path, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert not (corrupted_run.run_dir.path / "hit").exists()


@NO_EXECUTION
@pytest.mark.quality("X5")
def test_a_sweep_leaves_the_working_directory_off_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", before.copy())
    Path("night.toml").write_text('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\n')
    assert main(["sweep", "night.toml", "--dry-run"]) == 0
    assert sys.path == before


@pytest.fixture
def task_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a directory with a robot task that imports an installed package."""
    directory, packages_dir = tmp_path / "lab", tmp_path / "installed"
    directory.mkdir()
    packages_dir.mkdir()
    (packages_dir / "installed_package.py").write_text(
        "def look():\n    try:\n        import optional_package\n    except ImportError:\n        return False\n"
        "    return True\nFOUND = look()\n"
    )
    (directory / "optional_package.py").write_text(HOSTILE_CODE)
    (directory / "own_robot.py").write_text(
        "import installed_package, own_cameras\n"
        "def make_env():\n"
        "    from own_arm.joints import Identity\n"
        "    assert not installed_package.FOUND and not installed_package.look()\n"
        "    return own_cameras.wrapped(Identity())\n"
    )
    (directory / "own_cameras.py").write_text("def wrapped(env):\n    return env\n")
    (directory / "own_arm").mkdir()
    (directory / "own_arm" / "__init__.py").touch()
    (directory / "own_arm" / "joints.py").write_text("from own_toys import Identity\n")
    (directory / "own_toys.py").write_text("from manyview.envs.toy import Identity\n")
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(packages_dir)
    before = set(sys.modules)
    yield directory
    for name in [name for name in sys.modules.keys() - before if name.startswith(("own_", "installed_"))]:
        del sys.modules[name]


@TASK_IMPORTS
@pytest.mark.quality("X5")
def test_an_own_task_imports_modules_beside_it_also_when_it_is_called(task_dir: Path) -> None:
    make("own_robot:make_env").close()
    assert str(task_dir) not in sys.path
    assert not (task_dir / "hit").exists()


@TASK_IMPORTS
@pytest.mark.quality("X5")
def test_an_own_task_imports_modules_after_a_change_of_directory(task_dir: Path, tmp_path: Path) -> None:
    """`make_env` imports when it is called, from the directory of its module."""
    (task_dir / "own_late.py").write_text("import os\ndef make_env():\n    os.chdir('..')\n    import own_toys\n")
    with pytest.raises(TypeError, match="must return a Gymnasium environment"):
        make("own_late:make_env")
    assert Path.cwd() == tmp_path
    assert sys.modules["own_toys"].__file__ == str(task_dir / "own_toys.py")


@TASK_IMPORTS
@pytest.mark.quality("X5")
def test_other_code_does_not_import_from_the_directory_of_the_task(task_dir: Path) -> None:
    make("own_robot:make_env").close()
    with pytest.raises(ModuleNotFoundError):
        import optional_package  # type: ignore[import-not-found]  # noqa: F401
    assert not (task_dir / "hit").exists()


@TASK_IMPORTS
@pytest.mark.quality("X5")
def test_a_new_process_finds_the_task_by_its_name(task_dir: Path) -> None:
    vector = make_vector("own_robot:make_env", 1, processes=True)
    vector.reset(seed=0)
    vector.close()
    assert not (task_dir / "hit").exists()


@pytest.mark.long
@NO_EXECUTION
@pytest.mark.quality("X5")
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_processes_of_ray_execute_the_own_task_and_nothing_else(tmp_path: Path, command: str) -> None:
    write_hostile_modules(tmp_path)
    (tmp_path / "own_robot.py").write_text("import own_toys\nmake_env = own_toys.make\n")
    (tmp_path / "own_toys.py").write_text(
        "from manyview.envs.toy import Identity\ndef make():\n    return Identity(actions='continuous')\n"
    )
    settings = {
        "schedule.frames": 300,
        "evaluation.episodes": 1,
        "logging.tensorboard": False,
        "evaluation.video": False,
    }
    if command == "train":
        changes = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        arguments = ["own_robot:make_env", "--preset", "minute", "--out", "run", "--actors", "1", "--set", *changes]
        arguments += ["scale.chunk_steps=25"]
    else:
        (tmp_path / "night.toml").write_text(
            'tasks = ["own_robot:make_env"]\nmethods = ["drqv2+none"]\npreset = "minute"\n[set]\n'
            + "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items())
        )
        arguments = ["night.toml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "manyview", command, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert not list(tmp_path.rglob("hit"))
