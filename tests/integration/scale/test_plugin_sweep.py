"""A package that pip installed into a new environment trains on real Ray: in a sweep, and with actors."""

import json
import os
import shutil
import site
import subprocess
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from manyview.training import RunDir
from tests.integration.test_plugin import PLUGIN

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.long]
METHODS, SEEDS = ("drqv2+surprise", "sac+autoencoder+surprise"), (1, 2)
SETTINGS: dict[str, object] = {
    "schedule.frames": 150,
    "schedule.random_steps": 20,
    "schedule.seed_frames": 30,
    "replay.batch_size": 8,
    "evaluation.every_frames": 75,
    "evaluation.episodes": 2,
    "evaluation.video": False,
    "logging.tensorboard": False,
    "agent.hidden": 16,
    "bonus.hidden": 16,
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment that adds the package to this one."""
    path = tmp_path_factory.mktemp("environment")
    venv.create(path, with_pip=False, symlinks=True)
    (packages,) = path.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in site.getsitepackages()]
    (packages / "outer.pth").write_text("".join(lines))
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(PLUGIN, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run_python(path / "bin" / "python", "-m", "pip", "install", *options, str(source))
    assert (packages / "manyview_example").is_dir()
    return path / "bin" / "python"


def run_python(python: Path, *arguments: str) -> str:
    """Return the output of a command, in which only the environment has the package."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    process = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=python.parent,
        env={**env, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_a_sweep_trains_every_run_of_the_package_and_its_results_are_reported(python: Path, tmp_path: Path) -> None:
    assert find_spec("manyview_example") is None  # the package is in that environment alone
    out, file, settings = tmp_path / "runs", tmp_path / "sweep.toml", "".join(map(format_setting, SETTINGS))
    file.write_text(
        f'tasks = ["example/corridor"]\nmethods = {json.dumps(METHODS)}\nseeds = {json.dumps(SEEDS)}\n'
        f'preset = "minute"\nout = "{out}"\n[set]\n{settings}'
    )
    run_python(python, "-m", "manyview", "sweep", str(file))
    names = [(method, seed) for method in METHODS for seed in SEEDS]
    run_dirs = [out / "example-corridor" / method / f"seed{seed}" for method, seed in names]
    for path in run_dirs:
        manifest = RunDir(path).read_manifest()
        assert "finished" in manifest
        assert manifest["versions"]["manyview-example"] == "0.1.0"
    rows = json.loads(run_python(python, "-m", "manyview", "runs", str(out), "--json"))
    assert sorted((row["method"], row["seed"]) for row in rows) == names
    assert all(row["state"] == "finished" and row["last_return"] is not None for row in rows)
    run_python(python, "-m", "manyview", "plot", str(out), "--out", str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").stat().st_size
    metrics = [(path / "metrics.jsonl").read_bytes() for path in run_dirs]
    run_python(python, "-m", "manyview", "sweep", str(file))  # nothing is left to train
    assert [(path / "metrics.jsonl").read_bytes() for path in run_dirs] == metrics


def format_setting(name: str) -> str:
    return f'"{name}" = {json.dumps(SETTINGS[name])}\n'


def test_actors_and_shards_find_the_package(python: Path, tmp_path: Path) -> None:
    settings = [f"{name}={json.dumps(value)}" for name, value in SETTINGS.items()]
    options = ["--method", METHODS[1], "--preset", "minute", "--actors", "2", "--out", str(tmp_path / "run"), "--set"]
    run_python(python, "-m", "manyview", "train", "example/corridor", *options, *settings, "scale.chunk_steps=10")
    assert RunDir(tmp_path / "run").is_finished
