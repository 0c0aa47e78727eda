"""The wheel of manyview-runtime acts as the run's policy where neither torch nor manyview can be imported."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyview
from manyview.deploy.export import export_policy
from manyview.deploy.export_check import list_view_subsets
from manyview.training import RunDir, run
from tests.support.robots import train_robot
from tests.support.runs import make_short_config

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "packages" / "manyview-runtime"
NUM_OBSERVATIONS = 1_000
ACT_CODE = """
import sys
from importlib.abc import MetaPathFinder

class Block(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "manyview", "gymnasium", "safetensors"):
            raise ImportError(f"{name} is blocked")

wheel, folder, inputs = sys.argv[1:]
sys.meta_path.insert(0, Block())
sys.path.insert(0, wheel)
import numpy as np
import manyview_runtime

assert manyview_runtime.__file__.startswith(wheel), manyview_runtime.__file__
data = np.load(inputs)
policy = manyview_runtime.load(folder)
names = [view.name for view in policy.spec.views]
worst = 0.0
for index, present in enumerate(data["subsets"]):
    policy.reset()
    for step in range(len(data[names[0]])):
        observation = {name: data[name][step] for name, shown in zip(names, present) if shown}
        worst = max(worst, float(np.abs(policy.act(observation) - data["actions"][index, step]).max()))
print(worst)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked wheel, built without network access or build isolation."""
    directory = tmp_path_factory.mktemp("wheel")
    build = f"from hatchling.build import build_wheel; build_wheel({str(directory)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=PROJECT, check=True, capture_output=True, timeout=300)
    (path,) = directory.glob("manyview_runtime-*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(directory / "unpacked")
    return directory / "unpacked"


def train_run(name: str, path: Path) -> Path:
    """Train a short run and return its path."""
    if name == "robot":
        return train_robot(path)
    run(make_short_config("sac+dribo", replay={"batch_size": 32}, representation={"cameras": "all"}), RunDir(path))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["robot", "recurrent"])
def test_the_robot_acts_as_the_run_with_every_subset_of_cameras(name: str, wheel: Path, tmp_path: Path) -> None:
    path = train_run(name, tmp_path / "run")
    export_policy(path, tmp_path / "export")
    policy, rng = manyview.load(path), np.random.default_rng(0)
    frames = {view.name: rng.integers(0, 256, (NUM_OBSERVATIONS, *view.shape), np.uint8) for view in policy.spec.views}
    subsets, actions = list_view_subsets(list(frames)), []
    for subset in subsets:
        policy.reset()
        actions.append([policy.act({name: frames[name][step] for name in subset}) for step in range(NUM_OBSERVATIONS)])
    arrays: dict[str, Any] = {**frames, "actions": np.array(actions)}
    arrays["subsets"] = np.array([[name in subset for name in frames] for subset in subsets])
    np.savez(tmp_path / "inputs.npz", **arrays)
    assert np.ptp(arrays["actions"], axis=1).min() > 1e-3  # the policy depends on its observations
    command = [sys.executable, "-c", ACT_CODE, str(wheel), str(tmp_path / "export"), str(tmp_path / "inputs.npz")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    half_range = 1.0 if name == "recurrent" else 5.0
    assert float(result.stdout) <= 1e-5 * half_range


def test_the_wheel_has_the_modules_of_the_runtime_and_needs_no_torch(wheel: Path) -> None:
    sources = {path.name for path in (ROOT / "src" / "manyview" / "runtime").iterdir() if path.is_file()}
    assert {path.name for path in (wheel / "manyview_runtime").iterdir()} == {*sources, "LICENSE"}
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    required = [line.split()[1] for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")]
    assert {text.split("<")[0].split(">")[0] for text in required} == {"numpy", "onnxruntime"}


def test_both_packages_have_one_version() -> None:
    versions = {
        tomllib.loads((directory / "pyproject.toml").read_text())["project"]["version"] for directory in (ROOT, PROJECT)
    }
    assert len(versions) == 1
