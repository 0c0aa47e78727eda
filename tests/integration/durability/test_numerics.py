"""A resume with other kernels, CPU instructions or OpenGL drivers is detected and rejected."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from manyview.envs.rendering.mujoco import MujocoRenderer, RenderedViews
from manyview.training import RunConfig, RunDir
from manyview.training.compute import compute_fingerprint
from manyview.training.resume import MachineChangedError, list_changes
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to, make_quick_config

CHANGED_NUMERICS = pytest.mark.attack(
    "A resume with other numerics or another OpenGL driver is refused, never called bit for bit"
)
TIMEOUT_S = 120
DMC_CONFIG = make_quick_config(task="dmc/ball_in_cup_catch", env={"image_size": 16})


def make_killed_run(config: RunConfig, run_dir: RunDir) -> RunDir:
    """Run to frame 25, abandon the runner, and return the run directory."""
    runner = Runner(config, run_dir)
    advance_to(runner, 25)
    abandon_runner(runner)
    return run_dir


def train(run_dir: RunDir, config: RunConfig, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Repeat the command of the run with additional environment variables."""
    command = [sys.executable, "-m", "manyview", "train", config.task, "--config", str(run_dir.config_file)]
    command += ["--out", str(run_dir.path), *options]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.mark.slow
@CHANGED_NUMERICS
@pytest.mark.quality("D8")
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA=SSE41", "MKL_CBWR=COMPATIBLE"])
def test_variables_that_choose_other_kernels_are_refused(tmp_path: Path, variable: str) -> None:
    config, (name, value) = make_quick_config(), variable.split("=")
    run_dir = make_killed_run(config, RunDir(tmp_path / "run"))
    result = train(run_dir, config, **{name: value})
    assert result.returncode == 2, result.stderr
    assert f"environment.{name} was None, is {value}" in result.stderr
    if platform.machine() == "x86_64":  # elsewhere the variables have no effect
        assert "numerics was " in result.stderr
    assert "--accept-changes" in result.stderr


@pytest.mark.slow
@CHANGED_NUMERICS
@pytest.mark.quality("D8")
@pytest.mark.simulator
@pytest.mark.parametrize(
    "variable", ["GALLIUM_DRIVER=softpipe", pytest.param("LP_NATIVE_VECTOR_WIDTH=128", marks=pytest.mark.long)]
)
def test_variables_that_choose_another_driver_are_refused(tmp_path: Path, variable: str) -> None:
    name, value = variable.split("=")
    run_dir = make_killed_run(DMC_CONFIG, RunDir(tmp_path / "run"))
    result = train(run_dir, DMC_CONFIG, **{name: value})
    assert result.returncode == 2, result.stderr
    assert f"environment.{name} was None, is {value}" in result.stderr
    assert "renderer was llvmpipe" in result.stderr


@pytest.mark.slow
@CHANGED_NUMERICS
@pytest.mark.quality("D8")
@pytest.mark.simulator
def test_an_image_that_renders_differently_is_rejected_unless_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the image shows the change: driver and environment variables are the same."""
    run_dir = make_killed_run(DMC_CONFIG, RunDir(tmp_path / "run"))
    render_views = MujocoRenderer.render_views

    def render_flipped(self: MujocoRenderer, views: Any) -> RenderedViews:
        images, failures = render_views(self, views)
        return RenderedViews(
            {name: image if image is None else image[::-1] for name, image in images.items()}, failures
        )

    monkeypatch.setattr(MujocoRenderer, "render_views", render_flipped)
    with pytest.raises(MachineChangedError, match="view cam0 renders differently"):
        Runner(DMC_CONFIG, run_dir)
    runner = Runner(DMC_CONFIG, run_dir, accept_changes=True)
    runner.close()
    assert run_dir.read_manifest()["resumed_at"]["resume_mode"] == "changed"


@CHANGED_NUMERICS
@pytest.mark.quality("D8")
def test_a_field_that_the_manifest_lacks_counts_as_changed() -> None:
    assert list_changes({}, {"numerics": "0f3a"}) == ["numerics was None, is 0f3a"]


def test_a_fingerprint_is_the_same_twice_and_draws_from_no_generator_of_the_process() -> None:
    before = torch.get_rng_state()
    first, second = compute_fingerprint(torch.device("cpu")), compute_fingerprint(torch.device("cpu"))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
