"""Export a policy: an ONNX model or a torch program, with `policy.json` beside it."""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from manyview import __version__
from manyview.deploy.export_check import CheckedSubset, check_policy, record_observations
from manyview.deploy.network import PolicyNetwork
from manyview.deploy.policy import SavedPolicy, TorchPolicy, load_saved_policy
from manyview.runtime import onnx_policy
from manyview.runtime.policy import Policy
from manyview.runtime.policy_file import MODEL_FILE, SPEC_FILE, PolicyFile
from manyview.runtime.spec import MEMORY, PolicySpec
from manyview.utils.files import TEMP_SUFFIX
from manyview.utils.json_io import dump_json
from manyview.utils.optional_imports import import_optional
from manyview.utils.output_paths import check_output_directory
from manyview.utils.text import sanitize_text

ExportFormat = Literal["onnx", "torch"]
OPSET = 20
"""ONNX operator set of exported models."""
PROGRAM_FILE = "policy.pt2"
FIXED_AUGMENTATIONS = ("flip", "grayscale")
"""Augmented views without randomness, which the network computes itself."""
MAX_BATCH = 65_536


@dataclass(frozen=True, kw_only=True)
class Export:
    """Files of an export and the results of its numeric check."""

    files: tuple[Path, ...]
    spec: PolicySpec
    checks: tuple[CheckedSubset, ...]
    skipped: str | None
    """Reason why there was no check on recorded inputs; None if there was one."""


def export_policy(
    run: Path,
    folder: Path,
    *,
    file_format: ExportFormat = "onnx",
    checkpoint: str = "last",
    own_task: str | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Export:
    """Export the policy of a run to a folder, and check it against the policy in torch.

    Args:
        run: Run directory, or checkpoint in it.
        folder: Folder for the files; files of an earlier export in it are replaced.
        file_format: `onnx` for `policy.onnx`, `torch` for `policy.pt2`, a program of `torch.export`.
        checkpoint: As for `manyview.load`.
        own_task: `module:function` of a run on your own environment, from which inputs are recorded then.
        log: Receives progress as text.

    Raises:
        ValueError: The policy cannot be exported, or the exported one acts differently.

    """
    check_output_directory(folder)
    saved = load_saved_policy(run, choice=checkpoint, own_task=own_task)
    _check_exportable(saved)
    log(f"exporting checkpoint {saved.checkpoint_path.name} as {file_format}")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", suffix=TEMP_SUFFIX, dir=folder) as temporary:
        write = _write_onnx if file_format == "onnx" else _write_program
        written = write(saved, Path(temporary))
        log("checking the exported policy")
        reference = TorchPolicy(saved.network)
        exported = (
            onnx_policy.load(temporary) if file_format == "onnx" else ProgramPolicy(saved.network.spec, written[0])
        )
        recorded, skipped = record_observations(saved.config, reference, own_task)
        checks = check_policy(exported, reference, recorded)
        # `policy.json` last: it has the checksum of the model.
        files = tuple(path.replace(folder / path.name) for path in written)
    return Export(files=files, spec=saved.network.spec, checks=checks, skipped=skipped)


class ProgramPolicy(Policy):
    """A policy whose network is a saved program of `torch.export`; load only files of your own."""

    def __init__(self, spec: PolicySpec, path: Path) -> None:
        super().__init__(spec)
        self._program: Any = torch.export.load(path).module()

    @torch.no_grad()
    def run_network(self, inputs: Any) -> Any:
        outputs = self._program(*(torch.from_numpy(inputs[name]) for name in self.spec.inputs))
        return {name: output.numpy() for name, output in zip(self.spec.outputs, outputs, strict=True)}


def _check_exportable(saved: SavedPolicy) -> None:
    """Raise `ValueError` for random views, and for names that the network's inputs and outputs cannot have."""
    network = saved.network
    augmentations = [augmentation for _, augmentation in network.shapes.derived_views.augmentations]
    if random := [augmentation for augmentation in augmentations if augmentation not in FIXED_AUGMENTATIONS]:
        raise ValueError(
            f"env.augmented_view={random[0]} is random, drawn anew for every episode: expected none, "
            f"{' or '.join(FIXED_AUGMENTATIONS)}, which a network can compute. Run the policy with manyview.load"
        )
    names = [view.name for view in network.spec.views] + [vector.name for vector in network.spec.vectors]
    if taken := [name for name in names if name in network.spec.outputs or name.startswith(MEMORY)]:
        raise ValueError(f"view or vector {taken[0]!r} has the name of an output: expected another name")


def _write_onnx(saved: SavedPolicy, folder: Path) -> tuple[Path, ...]:
    """Write the ONNX model and `policy.json`; return their paths."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_optional(package, extra="export")
    spec, program = saved.network.spec, trace_network(saved.network)
    with _quiet_export():
        exported: Any = torch.onnx.export(
            program,
            input_names=list(spec.inputs),
            output_names=list(spec.outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    _remove_debug_info(exported.model)
    path = folder / MODEL_FILE
    exported.save(str(path))
    contents = PolicyFile(spec, hashlib.sha256(path.read_bytes()).hexdigest(), OPSET, _describe_training(saved))
    (folder / SPEC_FILE).write_bytes(dump_json(contents.to_plain()))
    return path, folder / SPEC_FILE


def _write_program(saved: SavedPolicy, folder: Path) -> tuple[Path, ...]:
    path = folder / PROGRAM_FILE
    _remove_unused_tensors(saved.network, trace_network(saved.network))
    program = trace_network(saved.network)
    with _quiet_export():
        torch.export.save(program, path)
    return (path,)


def _remove_unused_tensors(network: PolicyNetwork, program: torch.export.ExportedProgram) -> None:
    """Remove the tensors that only training needs, such as critics: a program keeps all of its module."""
    signature, nodes = program.graph_signature, cast("Any", program.graph.nodes)
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    # By identity: a bonus may share the encoder, whose tensors then have several names.
    used = {id(attrgetter(names[node.name])(network)) for node in nodes if node.name in names and node.users}
    for module in network.modules():
        for tensors in (module._parameters, module._buffers):
            unused = [name for name, tensor in tensors.items() if tensor is not None and id(tensor) not in used]
            for name in unused:
                del tensors[name]


def trace_network(network: PolicyNetwork) -> torch.export.ExportedProgram:
    """Return the network as a program that takes any batch size.

    Raises `ValueError` if it cannot be traced.
    """
    spec = network.spec
    # A batch of two: torch treats a dimension of one as fixed.
    examples = tuple(_make_example(tensor.shape, tensor.kind) for tensor in spec.inputs.values())
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    try:
        with _quiet_export(), torch.no_grad():
            return torch.export.export(network, examples, dynamic_shapes=(tuple({0: batch} for _ in examples),))
    except Exception as error:  # torch raises many classes here
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the policy cannot be exported: {sanitize_text(reason)}") from error


def _make_example(shape: Sequence[int], kind: str) -> Tensor:
    return torch.ones(2, *shape, dtype=getattr(torch, kind))


def _remove_debug_info(model: Any) -> None:
    """Remove the stack traces of every node: they are large, and name paths of this machine."""
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()


def _describe_training(saved: SavedPolicy) -> dict[str, Any]:
    manifest, config, counters = saved.manifest, saved.config, saved.counters
    return {
        "task": config.task,
        "method": config.method,
        "seed": config.seed,
        "checkpoint": saved.checkpoint_path.name,
        "frames": counters.frames,
        "updates": counters.updates,
        "commit": manifest.get("commit"),
        "versions": manifest.get("versions"),
        "exported_with": {"manyview": __version__, "torch": torch.__version__},
    }


@contextmanager
def _quiet_export() -> Iterator[None]:
    """Silence notes of the exporter about its own parts."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
