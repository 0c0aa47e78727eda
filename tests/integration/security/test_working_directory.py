"""Files beside a run, or where the command is given: none is executed but the user's own task and what that imports."""

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

OPTIONAL = ("triton", "gmpy2", "colorama", "tabulate", "torch", "numpy", "typing", "csv", "sitecustomize")
"""What installed packages import, or would if it were there."""
HOSTILE = "open('hit', 'a').write(__name__)\n"
NOTHING_RUNS = pytest.mark.attack("no file in the working directory is executed but the user's own task")
SIBLINGS = pytest.mark.attack("a task of the user's own imports what lies beside it, and installed packages do not")


def poison(folder: Path) -> None:
    for name in OPTIONAL:
        (folder / f"{name}.py").write_text(HOSTILE)


@NOTHING_RUNS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("path", [[], pytest.param(["-P"], marks=pytest.mark.long)], ids=["-m", "console script"])
def test_evaluating_a_run_executes_nothing_that_lies_beside_it(victim: CorruptedRun, path: list[str]) -> None:
    poison(victim.run_dir.path)
    command = [sys.executable, *path, "-m", "manyview", "evaluate", ".", "--episodes", "1"]
    ended = subprocess.run(command, cwd=victim.run_dir.path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (victim.run_dir.path / "hit").exists()


@NOTHING_RUNS
@pytest.mark.quality("X5")
def test_a_sweep_leaves_the_working_directory_off_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", before.copy())
    Path("night.toml").write_text('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\n')
    assert main(["sweep", "night.toml", "--dry-run"]) == 0
    assert sys.path == before


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a robot, its cameras and its arm, and an installed package that looks for an optional one."""
    folder, installed = tmp_path / "lab", tmp_path / "installed"
    folder.mkdir()
    installed.mkdir()
    (installed / "installed_package.py").write_text(
        "def look():\n    try:\n        import optional_package\n    except ImportError:\n        return False\n"
        "    return True\nFOUND = look()\n"
    )
    (folder / "optional_package.py").write_text(HOSTILE)
    (folder / "own_robot.py").write_text(
        "import installed_package, own_cameras\n"
        "def make_env():\n"
        "    from own_arm.joints import Identity\n"
        "    assert not installed_package.FOUND and not installed_package.look()\n"
        "    return own_cameras.wrapped(Identity())\n"
    )
    (folder / "own_cameras.py").write_text("def wrapped(env):\n    return env\n")
    (folder / "own_arm").mkdir()
    (folder / "own_arm" / "__init__.py").touch()
    (folder / "own_arm" / "joints.py").write_text("from own_toys import Identity\n")
    (folder / "own_toys.py").write_text("from manyview.envs.toy import Identity\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(installed)
    before = set(sys.modules)
    yield folder
    for name in [name for name in sys.modules.keys() - before if name.startswith(("own_", "installed_"))]:
        del sys.modules[name]


@SIBLINGS
@pytest.mark.quality("X5")
def test_an_own_task_imports_what_lies_beside_it_also_when_it_is_called(lab: Path) -> None:
    make("own_robot:make_env").close()
    assert str(lab) not in sys.path
    assert not (lab / "hit").exists()


@SIBLINGS
@pytest.mark.quality("X5")
def test_an_own_task_does_so_after_the_command_has_gone_elsewhere(lab: Path, tmp_path: Path) -> None:
    """`make_env` imports late, and from the folder of its module."""
    (lab / "own_late.py").write_text("import os\ndef make_env():\n    os.chdir('..')\n    import own_toys\n")
    with pytest.raises(TypeError, match="must return a Gymnasium environment"):
        make("own_late:make_env")
    assert Path.cwd() == tmp_path
    assert sys.modules["own_toys"].__file__ == str(lab / "own_toys.py")


@SIBLINGS
@pytest.mark.quality("X5")
def test_nobody_else_imports_from_there(lab: Path) -> None:
    make("own_robot:make_env").close()
    with pytest.raises(ModuleNotFoundError):
        import optional_package  # type: ignore[import-not-found]  # noqa: F401
    assert not (lab / "hit").exists()


@SIBLINGS
@pytest.mark.quality("X5")
def test_a_process_of_its_own_finds_the_task_by_its_name(lab: Path) -> None:
    vector = make_vector("own_robot:make_env", 1, processes=True)
    vector.reset(seed=0)
    vector.close()
    assert not (lab / "hit").exists()


@pytest.mark.long
@NOTHING_RUNS
@pytest.mark.quality("X5")
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_processes_of_ray_execute_the_own_task_and_nothing_else(tmp_path: Path, command: str) -> None:
    poison(tmp_path)
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
    ended = subprocess.run(
        [sys.executable, "-m", "manyview", command, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not list(tmp_path.rglob("hit"))
