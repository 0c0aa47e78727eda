"""Adapters state the tested framework version, and name their extra if it is missing."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PINS = dict(line.split("==") for line in (ROOT / ".ci/constraints.txt").read_text().splitlines() if "==" in line)


@pytest.mark.parametrize(
    ("module", "page", "package"),
    [
        ("sb3", "stable_baselines3", "stable-baselines3"),
        ("torchrl", "torchrl", "torchrl"),
        ("rllib", "rllib", "ray"),
    ],
)
def test_the_stated_version_is_the_tested_one(module: str, page: str, package: str) -> None:
    framework_version = f"{package} {PINS[package.replace('-', '_')]}"
    source = (ROOT / "src" / "manyview" / "adapters" / f"{module}.py").read_text()
    assert f"Tested with {framework_version}." in source
    guides = ROOT / "docs" / "guides"
    assert re.search(rf"[Tt]ested with {re.escape(framework_version)}\.", (guides / f"{page}.md").read_text())
    assert f"| {framework_version} |" in (guides / "own_loop.md").read_text()


@pytest.mark.parametrize(
    ("module", "framework"), [("sb3", "stable_baselines3"), ("torchrl", "torchrl"), ("rllib", "ray.rllib")]
)
def test_a_missing_framework_names_its_extra(module: str, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"manyview.adapters.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "manyview\[{module}\]"'):
        import_module(f"manyview.adapters.{module}")
