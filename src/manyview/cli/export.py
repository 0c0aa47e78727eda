"""`manyview export`: export the policy of a run, and check the result against it."""

import json
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from manyview.cli.arguments import CheckpointOption, JsonFlag, OwnTaskOption, exit_on_error, log_progress
from manyview.deploy.export import Export, ExportFormat, export_policy
from manyview.runtime.spec import TensorSpec
from manyview.utils.text import print_line


def export(
    run: Positional[Annotated[Path, arg(metavar="RUN", help="Run directory, or a checkpoint in it.")]],
    *,
    out: Annotated[Path, arg(metavar="FOLDER", help="Folder for policy.onnx and policy.json, or for policy.pt2.")],
    file_format: Annotated[
        ExportFormat, arg(name="format", help="ONNX model for manyview-runtime, or program of torch.export.")
    ] = "onnx",
    checkpoint: CheckpointOption = "last",
    own_task: OwnTaskOption = None,
    as_json: JsonFlag = False,
) -> int:
    """Export the policy of a run for a robot.

    The exported policy is compared with the run's on random and on recorded inputs, with every subset of its views.
    """
    with exit_on_error():
        result = export_policy(
            run, out, file_format=file_format, checkpoint=checkpoint, own_task=own_task, log=log_progress
        )
    if as_json:
        print(json.dumps(_to_plain(result), indent=2))
    else:
        _print_result(result)
    return 0


def _print_result(result: Export) -> None:
    for title, tensors in (("inputs", result.spec.inputs), ("outputs", result.spec.outputs)):
        print_line(f"{title}: " + ", ".join(_format_tensor(name, tensor) for name, tensor in tensors.items()))
    print("\ninputs    observations  max difference  views")
    for check in result.checks:
        print_line(f"{check.source:8}  {check.observations:12}  {check.max_difference:14.1e}  {', '.join(check.views)}")
    if result.skipped is not None:
        print_line(f"no check on recorded inputs: {result.skipped}")
    for path in result.files:
        print_line(f"written to {path}")


def _format_tensor(name: str, tensor: TensorSpec) -> str:
    return f"{name} {tensor.kind} [{', '.join(['B', *map(str, tensor.shape)])}]"


def _to_plain(result: Export) -> dict[str, Any]:
    return {
        "files": [str(path) for path in result.files],
        "spec": result.spec.to_plain(),
        "checks": [check._asdict() for check in result.checks],
        "skipped": result.skipped,
    }
