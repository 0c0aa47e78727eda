"""Other kernels, instructions or drivers than a run began with are found before anything is called bit for bit."""

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

HOLDS = pytest.mark.attack("A resume with other numerics or another OpenGL driver is refused, never called bit for bit")
LIMIT_S = 120
SEEN = make_quick_config(task="dmc/ball_in_cup_catch", env={"image_size": 16})


def killed(config: RunConfig, folder: RunDir) -> RunDir:
    session = Runner(config, folder)
    advance_to(session, 25)
    abandon_runner(session)
    return folder


def train(folder: RunDir, config: RunConfig, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Give the same command again, in an environment with these variables."""
    command = [sys.executable, "-m", "manyview", "train", config.task, "--config", str(folder.config_file)]
    command += ["--out", str(folder.path), *options]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.slow
@HOLDS
@pytest.mark.quality("D8")
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA=SSE41", "MKL_CBWR=COMPATIBLE"])
def test_variables_that_choose_other_kernels_are_refused(tmp_path: Path, variable: str) -> None:
    config, (name, value) = make_quick_config(), variable.split("=")
    folder = killed(config, RunDir(tmp_path / "run"))
    ended = train(folder, config, **{name: value})
    assert ended.returncode == 2, ended.stderr
    assert f"environment.{name} was None, is {value}" in ended.stderr
    if platform.machine() == "x86_64":  # where the variable means something, the results themselves differ
        assert "numerics was " in ended.stderr
    assert "--accept-changes" in ended.stderr


@pytest.mark.slow
@HOLDS
@pytest.mark.quality("D8")
@pytest.mark.simulator
@pytest.mark.parametrize(
    "variable", ["GALLIUM_DRIVER=softpipe", pytest.param("LP_NATIVE_VECTOR_WIDTH=128", marks=pytest.mark.long)]
)
def test_variables_that_choose_another_driver_are_refused(tmp_path: Path, variable: str) -> None:
    name, value = variable.split("=")
    folder = killed(SEEN, RunDir(tmp_path / "run"))
    ended = train(folder, SEEN, **{name: value})
    assert ended.returncode == 2, ended.stderr
    assert f"environment.{name} was None, is {value}" in ended.stderr
    assert "renderer was llvmpipe" in ended.stderr


@pytest.mark.slow
@HOLDS
@pytest.mark.quality("D8")
@pytest.mark.simulator
def test_a_picture_that_is_drawn_otherwise_is_refused_and_accepted_only_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the cause: no name and no variable says so here."""
    folder = killed(SEEN, RunDir(tmp_path / "run"))
    real = MujocoRenderer.render_views

    def draw_otherwise(self: MujocoRenderer, views: Any) -> RenderedViews:
        pictures, failures = real(self, views)
        return RenderedViews(
            {name: picture if picture is None else picture[::-1] for name, picture in pictures.items()}, failures
        )

    monkeypatch.setattr(MujocoRenderer, "render_views", draw_otherwise)
    with pytest.raises(MachineChangedError, match="view cam0 renders differently"):
        Runner(SEEN, folder)
    session = Runner(SEEN, folder, accept_changes=True)
    session.close()
    assert folder.read_manifest()["resumed_at"]["resume_mode"] == "changed"


@HOLDS
@pytest.mark.quality("D8")
def test_a_field_that_the_manifest_lacks_counts_as_changed() -> None:
    assert list_changes({}, {"numerics": "0f3a"}) == ["numerics was None, is 0f3a"]


def test_a_fingerprint_is_the_same_twice_and_draws_from_no_generator_of_the_process() -> None:
    before = torch.get_rng_state()
    one, other = compute_fingerprint(torch.device("cpu")), compute_fingerprint(torch.device("cpu"))
    assert one == other
    assert torch.equal(torch.get_rng_state(), before)
