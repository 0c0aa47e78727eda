"""Files of an exported policy: `policy.json` beside `policy.onnx`, both untrusted."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .spec import PolicySpec, TensorSpec, read_object

SPEC_FILE, MODEL_FILE = "policy.json", "policy.onnx"
FORMAT = 1
MAX_SPEC_BYTES, MAX_MODEL_BYTES = 2**20, 4 * 2**30
FIELDS = ("format", "spec", "inputs", "outputs", "preprocessing", "model", "training")
MODEL_FIELDS = ("file", "sha256", "opset")
PREPROCESSING = {
    "images": "uint8, RGB, height x width x channels; normalized inside the network",
    "frame_stack": "oldest frame first; the first frame after a reset or a missing frame is repeated",
    "missing_view": "zeros, with mask false",
    "state_vectors": "float32 in the units of the environment; normalized inside the network",
    "actions": "in the units of the environment, within the bounds",
}
"""Steps of a program in another language; `spec` has the numbers."""


@dataclass(frozen=True)
class PolicyFile:
    """Contents of `policy.json`."""

    spec: PolicySpec
    sha256: str
    """SHA-256 of `policy.onnx`."""
    opset: int
    training: Mapping[str, Any]
    """Run, checkpoint, frames, commit and versions of the training; for people, never used."""

    def to_plain(self) -> dict[str, Any]:
        """Return the contents as JSON values."""
        return {
            "format": FORMAT,
            "spec": self.spec.to_plain(),
            "inputs": _describe(self.spec.inputs),
            "outputs": _describe(self.spec.outputs),
            "preprocessing": PREPROCESSING,
            "model": {"file": MODEL_FILE, "sha256": self.sha256, "opset": self.opset},
            "training": dict(self.training),
        }


def read_policy_file(folder: Path) -> tuple[PolicyFile, bytes]:
    """Return the contents of `policy.json`, and those of `policy.onnx`, which have its checksum.

    Raises `FileNotFoundError` if a file is missing, `ValueError` if one is invalid.
    """
    try:
        policy_file = parse_policy_file(_read_bounded(folder / SPEC_FILE, MAX_SPEC_BYTES))
    except ValueError as error:
        raise ValueError(f"{folder / SPEC_FILE}: {error}") from None
    model = _read_bounded(folder / MODEL_FILE, MAX_MODEL_BYTES)
    if (digest := hashlib.sha256(model).hexdigest()) != policy_file.sha256:
        raise ValueError(
            f"{folder / MODEL_FILE} is not the file that was exported: expected SHA-256 {policy_file.sha256[:12]}, got "
            f"{digest[:12]}. Export again, and copy the whole folder"
        )
    return policy_file, model


def parse_policy_file(content: bytes) -> PolicyFile:
    """Return untrusted `policy.json`; `ValueError` names the first invalid field."""
    try:
        plain = json.loads(content, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("invalid JSON: nested too deeply") from None
    if isinstance(plain, dict) and plain.get("format") != FORMAT:
        raise ValueError(f"unknown format: expected {FORMAT}, got {plain.get('format')!r:.80}. Update manyview-runtime")
    fields = read_object(plain, "contents", FIELDS)
    model = read_object(fields["model"], "model", MODEL_FIELDS)
    if model["file"] != MODEL_FILE:
        raise ValueError(f"invalid model.file: expected {MODEL_FILE}, got {model['file']!r:.80}")
    if not isinstance(model["sha256"], str) or not re.fullmatch(r"[0-9a-f]{64}", model["sha256"]):
        raise ValueError(f"invalid model.sha256: expected 64 hexadecimal digits, got {model['sha256']!r:.80}")
    if type(model["opset"]) is not int or not isinstance(fields["training"], dict):
        raise ValueError("invalid model.opset or training: expected an integer and an object")
    policy_file = PolicyFile(PolicySpec.from_plain(fields["spec"]), model["sha256"], model["opset"], fields["training"])
    expected = policy_file.to_plain()
    for name in ("inputs", "outputs"):
        if fields[name] != expected[name]:
            raise ValueError(f"{name} contradict spec: expected {expected[name]}, got {fields[name]!r:.200}")
    return policy_file


def _describe(tensors: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": ["batch", *tensor.shape], "dtype": tensor.kind} for name, tensor in tensors.items()]


def _read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file; `ValueError` for a link, a pipe, a device or too many bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: expected a folder of `manyview export`") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        os.close(descriptor)
        raise ValueError(
            f"{path.name} is invalid: expected a regular file of at most {max_bytes:,} bytes, got {status.st_size:,}"
        )
    with os.fdopen(descriptor, "rb") as file:
        return file.read(max_bytes)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("invalid JSON: a name occurs twice in an object")
    return result


def _reject_constant(name: str) -> Any:
    raise ValueError(f"invalid JSON: expected finite numbers, got {name}")
