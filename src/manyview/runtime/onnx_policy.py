"""A policy whose network runs in onnxruntime."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .policy import Arrays, Policy
from .policy_file import MODEL_FILE, PolicyFile, read_policy_file
from .spec import TensorSpec

ONNX_TYPES = {"tensor(uint8)": "uint8", "tensor(float)": "float32", "tensor(bool)": "bool", "tensor(int64)": "int64"}


def load(
    folder: str | os.PathLike[str],
    *,
    num_robots: int = 1,
    threads: int = 1,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> "OnnxPolicy":
    """Load the folder of `manyview export`: `policy.json` and `policy.onnx`.

    Args:
        folder: The folder.
        num_robots: Robots that one `act_batch` acts for.
        threads: Threads of the network.
        providers: Execution providers of onnxruntime, such as `CUDAExecutionProvider`.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is invalid or was changed after the export.

    """
    path = Path(folder)
    policy_file, model = read_policy_file(path)
    session = _open_session(model, threads=threads, providers=providers, path=path)
    return OnnxPolicy(policy_file, session, num_robots=num_robots)


class OnnxPolicy(Policy):
    """An exported policy; `manyview_runtime.load` makes one."""

    def __init__(self, policy_file: PolicyFile, session: Any, *, num_robots: int = 1) -> None:
        super().__init__(policy_file.spec, num_robots=num_robots)
        self._session, self._outputs = session, list(policy_file.spec.outputs)
        self.training = policy_file.training
        """Details of the training in `policy.json`."""
        _check_tensors("inputs", session.get_inputs(), self.spec.inputs)
        _check_tensors("outputs", session.get_outputs(), self.spec.outputs)

    def run_network(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        outputs: list[NDArray[Any]] = self._session.run(self._outputs, dict(inputs))
        return {name: np.asarray(output) for name, output in zip(self._outputs, outputs, strict=True)}


def _open_session(model: bytes, *, threads: int, providers: Sequence[str], path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "an exported policy needs onnxruntime: pip install manyview-runtime, or pip install 'manyview[export]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors only; they are raised too
    try:
        # The verified bytes, not the path: the file may change in between.
        return onnxruntime.InferenceSession(model, options, providers=list(providers))
    except Exception as error:  # onnxruntime raises classes of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path / MODEL_FILE} cannot be loaded: {reason[:300]}") from None


def _check_tensors(what: str, actual: Sequence[Any], expected: Mapping[str, TensorSpec]) -> None:
    """Raise `ValueError` unless a model's inputs or outputs are those of the spec; the batch may have any size."""
    found = {node.name: (tuple(node.shape[1:]), ONNX_TYPES.get(node.type, node.type)) for node in actual}
    wanted = {name: (tensor.shape, tensor.kind) for name, tensor in expected.items()}
    if found != wanted:
        raise ValueError(f"{MODEL_FILE} contradicts policy.json: expected the {what} {wanted}, got {found}")
