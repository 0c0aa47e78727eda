"""`manyview export`: the exported policy acts as that of the run, or nothing is written."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import manyview
from manyview.cli.main import main
from manyview.config.schema import RunConfig
from manyview.data import DerivedViews
from manyview.data.action_spec import ActionSpec
from manyview.deploy import export
from manyview.deploy.export import OPSET, export_policy
from manyview.deploy.export_check import TOLERANCE, check_policy, list_view_subsets
from manyview.deploy.network import PolicyNetwork
from manyview.deploy.policy import SavedPolicy, TorchPolicy, load_saved_policy
from manyview.envs import View
from manyview.runtime import ActionBounds, DiscreteActions, Policy, PolicySpec, VectorSpec, ViewSpec, onnx_policy
from manyview.runtime.onnx_policy import OnnxPolicy
from manyview.training import RunDir, factory, run
from manyview.training.counters import Counters
from manyview.training.factory import Shapes
from tests.support.robots import TASK, keep_views, make_observation, train_robot
from tests.support.runs import make_short_config, make_short_rollout_config

COMPOSITIONS: dict[str, RunConfig] = {
    "drqv2, official structure": make_short_config(
        "drqv2+none", agent={"structure": "official"}, representation={"projection": False}
    ),
    "sac, curl": make_short_config("sac+curl", replay={"augmentation": "crop"}),
    "sac, dribo, all cameras": make_short_config(
        "sac+dribo", replay={"batch_size": 32}, representation={"cameras": "all"}
    ),
    "drqv2, mad": make_short_config("drqv2+mad"),
    "sac, frame differences": make_short_config("sac+none", representation={"trunk": "tiny_diff"}),
    "ppo, drac": make_short_rollout_config("ppo+drac"),
    "ppo, mem, flip": make_short_rollout_config("ppo+mem", env={"augmented_view": "flip"}),
}


@pytest.fixture(scope="module")
def robot_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a short run on the robot task."""
    return train_robot(tmp_path_factory.mktemp("robot") / "run")


@pytest.fixture(scope="module")
def export_path(robot_run: Path) -> Path:
    """Return the path of the exported policy of `robot_run`."""
    folder = robot_run.parent / "export"
    assert main(["export", str(robot_run), "--out", str(folder), "--own-task", TASK]) == 0
    return folder


def make_saved_policy(config: RunConfig, *, stack: int = 2, channels: int = 3) -> SavedPolicy:
    """Return a policy with random weights for two views of 20 pixels."""
    names, is_discrete = ("front", "wrist"), config.is_on_policy
    actions: Any = DiscreteActions(5) if is_discrete else ActionBounds((-3.0, 0.0, 5.0), (1.0, 0.1, 6.0))
    cameras = tuple(View(name, 20, 20, channels) for name in names)
    shapes = Shapes(
        cameras,
        stack,
        ActionSpec(5 if is_discrete else 3, discrete=is_discrete),
        factory.build_derived_views(config, cameras),
    )
    agent = factory.build_agent(config, shapes)
    with torch.no_grad():
        for parameter in agent.parameters():  # tokens and biases start at zero
            parameter.add_(0.05 * torch.randn_like(parameter))
    memory = tuple(VectorSpec(name, buffer.shape[1]) for name, buffer in agent.memory.get().items())
    views = tuple(ViewSpec(name, 20, 20, channels) for name in names)
    spec = PolicySpec(views=views, frame_stack=stack, actions=actions, memory=memory)
    return SavedPolicy(PolicyNetwork(agent, shapes, spec), config, Path("000000000"), Counters(), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_composition_exports_to_onnx(name: str, tmp_path: Path) -> None:
    saved_policy = make_saved_policy(COMPOSITIONS[name])
    export._write_onnx(saved_policy, tmp_path)
    policy, reference = manyview.load(tmp_path, num_robots=3), TorchPolicy(saved_policy.network, num_robots=3)
    assert isinstance(policy, OnnxPolicy)
    rng, actions = np.random.default_rng(0), []
    for step in range(12):
        observations = [
            keep_views(make_observation(policy, rng), ("front", "wrist")[step % 2 :], policy) for _ in range(3)
        ]
        if step == 5:
            policy.reset([1])
            reference.reset([1])
        actions.append(policy.act_batch(observations))
        np.testing.assert_allclose(actions[-1], reference.act_batch(observations), atol=2e-5)
    assert len({action.tobytes() for action in actions}) > 1


def test_the_exported_robot_acts_as_the_run_with_every_subset_of_cameras(robot_run: Path, export_path: Path) -> None:
    policy, reference, rng = manyview.load(export_path), manyview.load(robot_run), np.random.default_rng(0)
    assert policy.spec == reference.spec
    for subset in list_view_subsets(["front", "wrist"]):
        policy.reset()
        reference.reset()
        for _ in range(5):
            observation = keep_views(
                {name: rng.integers(0, 256, (30, 40, 3), np.uint8) for name in ("front", "wrist")}, subset, policy
            )
            np.testing.assert_allclose(policy.act(observation), reference.act(observation), atol=3e-5)


def test_policy_json_describes_inputs_outputs_spec_and_training(robot_run: Path, export_path: Path) -> None:
    contents = json.loads((export_path / "policy.json").read_text())
    assert contents["model"]["sha256"] == hashlib.sha256((export_path / "policy.onnx").read_bytes()).hexdigest()
    assert contents["model"]["opset"] == OPSET
    assert contents["inputs"] == [
        {"name": "front", "shape": ["batch", 3, 16, 16, 3], "dtype": "uint8"},
        {"name": "wrist", "shape": ["batch", 3, 16, 16, 3], "dtype": "uint8"},
        {"name": "mask", "shape": ["batch", 2], "dtype": "bool"},
    ]
    assert contents["outputs"] == [{"name": "actions", "shape": ["batch", 2], "dtype": "float32"}]
    assert contents["spec"]["actions"] == {"low": [-2.0, 0.0], "high": [4.0, 10.0]}
    assert contents["spec"]["resize"] == {"sizes": [24, 16], "aspect": "pad"}
    assert contents["spec"]["control_hz"] == 20
    training = contents["training"]
    assert training["commit"] == RunDir(robot_run).read_manifest()["commit"]
    assert (training["task"], training["checkpoint"], training["frames"]) == (TASK, "000000040", 40)


def test_exported_files_name_no_paths_of_this_machine(export_path: Path) -> None:
    root = str(Path(__file__).parents[3]).encode()
    for name in ("policy.onnx", "policy.json"):
        assert root not in (export_path / name).read_bytes()
    assert sorted(path.name for path in export_path.iterdir()) == ["policy.json", "policy.onnx"]


def test_an_export_is_reproducible(robot_run: Path, export_path: Path, tmp_path: Path) -> None:
    export_policy(robot_run, tmp_path)
    assert (tmp_path / "policy.onnx").read_bytes() == (export_path / "policy.onnx").read_bytes()


def test_a_torch_program_acts_as_the_run_and_has_no_critics(robot_run: Path, tmp_path: Path) -> None:
    result = export_policy(robot_run, tmp_path, file_format="torch", own_task=TASK)
    assert [path.name for path in result.files] == ["policy.pt2"]
    assert {check.source for check in result.checks} == {"random", "recorded"}
    program = torch.export.load(tmp_path / "policy.pt2")
    assert not [name for name in program.state_dict if "critic" in name or "discriminator" in name]
    assert [name for name in program.state_dict if "actor" in name]


def test_the_command_prints_the_check_of_every_subset(
    robot_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(robot_run), "--out", str(tmp_path)]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "inputs: front uint8 [B, 3, 16, 16, 3], wrist uint8 [B, 3, 16, 16, 3], mask bool [B, 2]" in output
    assert [line.split("  ")[-1] for line in output.splitlines() if line.startswith("random")] == [
        "front",
        "wrist",
        "front, wrist",
    ]
    assert f"no check on recorded inputs: task '{TASK}' is code that is not trusted" in output
    assert main([*arguments, "--own-task", TASK, "--json", "--checkpoint", "000000020"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["skipped"] is None
    checks = [check for check in result["checks"] if check["source"] == "recorded"]
    assert len(checks) == 3
    assert all(check["observations"] == 50 and 0 <= check["max_difference"] <= TOLERANCE for check in checks)
    assert json.loads((tmp_path / "policy.json").read_text())["training"]["checkpoint"] == "000000020"


class ShiftedPolicy(Policy):
    """Policy that shifts its second action by 1e-3 if a view is missing."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.spec)
        self._policy = policy

    def run_network(self, inputs: Any) -> Any:
        outputs = self._policy.run_network(inputs)
        lacks_view = not inputs["mask"].all()
        return {**outputs, "actions": outputs["actions"] + np.array([0.0, 1e-3 * lacks_view], np.float32)}


def test_nothing_is_written_if_the_exported_policy_acts_differently(
    robot_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_policy = onnx_policy.load
    monkeypatch.setattr(onnx_policy, "load", lambda folder: ShiftedPolicy(load_policy(folder)))
    with pytest.raises(ValueError, match=r"acts differently: expected a difference of at most 1e-05, got 0\.0002"):
        export_policy(robot_run, tmp_path / "export")
    assert list((tmp_path / "export").iterdir()) == []


def test_a_random_view_is_refused_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(make_short_rollout_config("ppo+mem", env={"augmented_view": "cutout"}), RunDir(tmp_path / "run"))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "export")]) == 2
    assert "env.augmented_view=cutout is random" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("name", ["actions", "memory.x"])
def test_a_view_with_the_name_of_an_output_is_refused(name: str) -> None:
    saved_policy = make_saved_policy(COMPOSITIONS["drqv2, mad"])
    spec = saved_policy.network.spec
    saved_policy.network.spec = replace(spec, views=(replace(spec.views[0], name=name), spec.views[1]))
    with pytest.raises(ValueError, match=f"'{name}' has the name of an output"):
        export._check_exportable(saved_policy)


def test_errors_of_the_command_have_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "export")]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_more_than_six_views_are_checked_alone_and_missing() -> None:
    assert len(list_view_subsets("abcdef")) == 63
    assert len(list_view_subsets("abcdefg")) == 7 + 7 + 1


class EchoPolicy(Policy):
    """Policy whose action is the first number of its state vector."""

    def run_network(self, inputs: Any) -> dict[str, NDArray[Any]]:
        return {"actions": inputs["joints"][:, -1, :1]}


def test_a_difference_is_relative_to_the_range_of_the_actions() -> None:
    views, vectors = (ViewSpec("front", 4, 4, 3),), (VectorSpec("joints", 2),)
    narrow_spec, wide_spec = (
        PolicySpec(views=views, vectors=vectors, actions=ActionBounds((-bound,), (bound,))) for bound in (1.0, 1000.0)
    )

    class ShiftedEchoPolicy(EchoPolicy):
        def run_network(self, inputs: Any) -> dict[str, NDArray[Any]]:
            return {"actions": super().run_network(inputs)["actions"] + np.float32(1e-3)}

    assert all(
        check.max_difference < 2e-6 for check in check_policy(ShiftedEchoPolicy(wide_spec), EchoPolicy(wide_spec))
    )
    with pytest.raises(ValueError, match="acts differently"):
        check_policy(ShiftedEchoPolicy(narrow_spec), EchoPolicy(narrow_spec))


def test_weights_are_those_of_the_checkpoint(robot_run: Path) -> None:
    last_policy, first_policy = (load_saved_policy(robot_run, choice=name) for name in ("last", "000000000"))
    assert last_policy.counters.frames == 40
    assert first_policy.counters.frames == 0
    assert isinstance(last_policy.network.shapes.derived_views, DerivedViews)
    pairs = zip(last_policy.network.parameters(), first_policy.network.parameters(), strict=True)
    assert any(not torch.equal(parameter, other_parameter) for parameter, other_parameter in pairs)
