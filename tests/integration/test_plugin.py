"""An installed package adds a bonus, a representation and a suite, without a change in manyview."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from benchmarks.run_comparison import compare_runs
from manyview.training import RunDir
from tests.support.processes import kill_on_exit

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
TRAIN_ARGUMENTS = [
    *("train", "example/corridor", "--method", "sac+autoencoder+surprise", "--preset", "minute", "--set"),
    *("schedule.frames=150", "schedule.random_steps=20", "schedule.seed_frames=30", "replay.batch_size=8"),
    *("evaluation.every_frames=75", "evaluation.episodes=1", "evaluation.video=false", "logging.tensorboard=false"),
    *("logging.checkpoint_every_frames=20", "logging.keep_replay=true", "agent.hidden=16", "bonus.hidden=16", "--out"),
]
LAZY_IMPORT_CODE = """
import sys, manyview, manyview.training, manyview.cli.train
from manyview.envs.registration import list_suites, find_task
from manyview.methods import BONUSES
assert "example" in list_suites() and "surprise" in BONUSES
find_task("toy/identity")
assert not [name for name in sys.modules if name.startswith("manyview_example")]
find_task("example/corridor")
assert "manyview_example.corridor" in sys.modules and "manyview_example.surprise" not in sys.modules
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the installed package, built outside the checkout."""
    site = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(PLUGIN, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=300)
    return site


def start_python(arguments: list[str], site: Path | None) -> "subprocess.Popen[bytes]":
    """Start Python with the packages in `site`."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if site is not None:
        env["PYTHONPATH"] = str(site)
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def run_python(*arguments: str, site: Path | None) -> tuple[int, str, str]:
    """Run Python with the packages in `site`; return status, stdout and stderr."""
    with start_python([*arguments], site) as process, kill_on_exit(process):
        out, err = process.communicate(timeout=300)
    return process.returncode, out.decode(), err.decode()


def run_manyview(*arguments: str, site: Path | None) -> tuple[int, str, str]:
    return run_python("-m", "manyview", *arguments, site=site)


@pytest.fixture(scope="module")
def reference_dir(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of an uninterrupted run."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    status, _, err = run_manyview(*TRAIN_ARGUMENTS, str(path), site=site)
    assert status == 0, err
    return path


def test_a_killed_run_of_the_package_resumes_bit_for_bit(site: Path, reference_dir: Path, tmp_path: Path) -> None:
    killed_run = RunDir(tmp_path / "killed")
    with (
        start_python(["-m", "manyview", *TRAIN_ARGUMENTS, str(killed_run.path)], site) as process,
        kill_on_exit(process),
    ):
        deadline = monotonic() + 200
        while not list(killed_run.checkpoints_dir.glob("*")) and monotonic() < deadline:
            sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    assert process.returncode == -signal.SIGKILL, "the run had ended before the kill"
    assert not killed_run.is_finished
    status, _, err = run_manyview(*TRAIN_ARGUMENTS, str(killed_run.path), site=site)
    assert status == 0, err
    assert compare_runs(RunDir(reference_dir), killed_run) == []
    config, manifest = (json.loads(file.read_text()) for file in (killed_run.config_file, killed_run.manifest_file))
    assert config["bonus"]["name"] == "surprise"
    assert manifest["versions"]["manyview-example"] == "0.1.0"


def test_a_run_of_the_package_is_evaluated(site: Path, reference_dir: Path) -> None:
    status, out, err = run_manyview("evaluate", str(reference_dir), "--episodes", "2", "--json", site=site)
    assert status == 0, err
    assert len(json.loads(out)["returns"]) == 2


def test_a_run_is_refused_by_name_where_the_package_is_missing(reference_dir: Path) -> None:
    status, _, err = run_manyview("evaluate", str(reference_dir), site=None)
    assert status == 2
    assert "unknown representation 'autoencoder'" in err
    assert "Install the package that provides it" in err
    status, out, err = run_manyview("runs", str(reference_dir.parent), site=None)
    assert (status, "sac+autoencoder+surprise" in out) == (0, True), err


def test_tasks_and_sweeps_include_the_package(site: Path, tmp_path: Path) -> None:
    status, out, err = run_manyview("tasks", "--suite", "example", "--json", site=site)
    assert (status, [task["id"] for task in json.loads(out)]) == (0, ["example/corridor"]), err
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'tasks = ["example/corridor"]\nmethods = ["sac+surprise", "ppo+autoencoder+mem"]\nseeds = [1, 2]\n'
        f'out = "{tmp_path / "runs"}"\n'
    )
    status, out, err = run_manyview("sweep", str(sweep), "--dry-run", site=site)
    assert status == 0, err
    assert out.startswith("4 runs in ")


def test_the_package_is_imported_only_when_its_parts_are_used(site: Path) -> None:
    status, _, err = run_python("-c", LAZY_IMPORT_CODE, site=site)
    assert status == 0, err


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyview.suites]\nbroken = broken_suite:SUITE\n")
    status, _, err = run_manyview("tasks", site=tmp_path)
    assert status == 2
    assert "manyview.suites 'broken' (broken_suite:SUITE) of package broken-package cannot be loaded" in err
    status, _, err = run_manyview("tasks", "--suite", "toy", site=tmp_path)
    assert status == 0, err


def test_the_contracts_of_the_package_pass(site: Path) -> None:
    status, out, _ = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN / "tests"), site=site)
    assert status == 0, out
