"""Load the policy of a run, a checkpoint or an export folder."""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from manyview.agents import Agent
from manyview.config.schema import RunConfig
from manyview.deploy.network import PolicyNetwork
from manyview.report.curves import read_curve
from manyview.report.runs import BrokenRunError
from manyview.runtime.policy import Arrays, Policy
from manyview.runtime.spec import PolicySpec, VectorSpec
from manyview.training import RunDir, checkpoint, factory
from manyview.training.checkpoint import Checkpoint
from manyview.training.compute import resolve_compute
from manyview.training.counters import Counters
from manyview.training.factory import Shapes
from manyview.training.policy_spec import build_policy_spec, build_shapes
from manyview.training.saved_agent import build_saved_agent, check_trusted_task

SPEC_FIELD = "policy"
"""Field of the manifest with the spec of the policy."""


class TorchPolicy(Policy):
    """A policy whose network runs in torch, in float32."""

    def __init__(self, network: PolicyNetwork, *, num_robots: int = 1, device: torch.device | None = None) -> None:
        super().__init__(network.spec, num_robots=num_robots)
        self.network, self._device = network.to(device).eval(), device or torch.device("cpu")
        self._names = tuple(network.spec.inputs), tuple(network.spec.outputs)

    @torch.inference_mode()
    def run_network(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        names, output_names = self._names
        outputs = self.network(*(torch.from_numpy(inputs[name]).to(self._device) for name in names))
        return {name: output.cpu().numpy() for name, output in zip(output_names, outputs, strict=True)}


class SavedPolicy(NamedTuple):
    """Network of a checkpoint, with details of its training."""

    network: PolicyNetwork
    config: RunConfig
    checkpoint_path: Path
    counters: Counters
    manifest: Mapping[str, Any]


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: str = "last",
    num_robots: int = 1,
    device: str = "cpu",
    own_task: str | None = None,
) -> Policy:
    """Load a trained policy, to act without its training environment.

    Example::

        policy = manyview.load("runs/reach")
        policy.reset()
        action = policy.act({"front": rgb, "wrist": rgb})

    Args:
        path: Run directory, checkpoint in it, or folder of `manyview export`.
        checkpoint: `last`, the newest valid one; `best`, the one of the highest evaluation return among those that the
            run has kept; or the name of one, such as `000120000`.
        num_robots: Robots that one `act_batch` acts for.
        device: Device of the network; an exported policy runs on the CPU.
        own_task: `module:function` of a run on your own environment. Needed only for runs of earlier versions, whose
            manifest does not describe the policy: their environment is built once.

    Raises:
        FileNotFoundError: There is no run, checkpoint or export.
        ValueError: Its files are invalid.

    """
    folder = Path(path)
    if (folder / "policy.json").is_file():
        from manyview.runtime.onnx_policy import load as load_exported

        return load_exported(folder, num_robots=num_robots)
    saved = load_saved_policy(folder, choice=checkpoint, device=device, own_task=own_task)
    return TorchPolicy(saved.network, num_robots=num_robots, device=torch.device(device))


def load_saved_policy(
    path: Path, *, choice: str = "last", device: str = "cpu", own_task: str | None = None
) -> SavedPolicy:
    """Build the network of a checkpoint; the arguments are those of `load`."""
    if not (path / "config.json").exists() and path.parent.name == "checkpoints":
        path, choice = path.parent.parent, path.name
    run_dir = RunDir(path)
    config = run_dir.read_config()
    compute = resolve_compute(replace(config.compute, device=device, precision="float32", threads=None))
    config = replace(config, compute=compute)
    checkpoint_path, saved = load_chosen_checkpoint(run_dir, choice)
    shapes, spec = _find_shapes(config, checkpoint_path, saved, own_task)
    agent, counters = build_saved_agent(config, shapes, checkpoint_path, saved)
    network = PolicyNetwork(agent, shapes, replace(spec, memory=_list_memory(agent)))
    return SavedPolicy(network, config, checkpoint_path, counters, saved.manifest)


def load_chosen_checkpoint(run_dir: RunDir, choice: str) -> tuple[Path, Checkpoint]:
    """Load the checkpoint `last`, `best` or of a name, as `load` describes them."""
    paths = checkpoint.list_checkpoints(run_dir.checkpoints_dir)
    if not paths:
        raise FileNotFoundError(f"{run_dir.path} holds no checkpoint: expected a run that has saved at least one")
    if choice == "last":
        return checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
    if choice == "best":
        path = _find_best_checkpoint(run_dir, paths)
    else:
        path = next((path for path in paths if path.name == choice), run_dir.checkpoints_dir)
    if path not in paths:
        names = ", ".join(path.name for path in paths)
        raise FileNotFoundError(f"no such checkpoint: expected last, best or one of {names}, got {choice!r}")
    return path, checkpoint.load_checkpoint(path)


def _find_best_checkpoint(run_dir: RunDir, paths: list[Path]) -> Path:
    """Return the checkpoint of the highest evaluation return at its frames; the newest of equal ones."""
    try:
        curve = read_curve(run_dir.path, "frames", "evaluations")
    except BrokenRunError as error:
        raise ValueError(f"{run_dir.path} has no valid evaluations: {error}. Load the last checkpoint") from None
    returns = dict(zip(curve.x.tolist(), curve.returns.tolist(), strict=True))
    evaluated = {path: returns.get(float(path.name.removesuffix(".stop")), -inf) for path in paths}
    best = max(paths, key=lambda path: evaluated[path])
    if evaluated[best] == -inf:
        raise ValueError(
            f"{run_dir.path} has no evaluation at the frames of its checkpoints {', '.join(p.name for p in paths)}. "
            "Load the last checkpoint"
        )
    return best


def _find_shapes(config: RunConfig, path: Path, saved: Checkpoint, own_task: str | None) -> tuple[Shapes, PolicySpec]:
    """Return shapes and spec by the checkpoint's manifest; of an earlier version, by building the environment."""
    if SPEC_FIELD not in saved.manifest:
        check_trusted_task(config.task, own_task)
        with closing(factory.make_env(config)) as env:
            shapes = factory.infer_shapes(config, env)
            return shapes, build_policy_spec(shapes, env)
    try:
        spec = PolicySpec.from_plain(saved.manifest[SPEC_FIELD])
        return build_shapes(config, spec), spec
    except ValueError as error:
        raise ValueError(f"manifest of checkpoint {path} is invalid: {error}") from None


def _list_memory(agent: Agent) -> tuple[VectorSpec, ...]:
    return tuple(VectorSpec(name, buffer.shape[1]) for name, buffer in agent.memory.get().items())
