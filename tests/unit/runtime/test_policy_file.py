"""`policy.json` and `policy.onnx` from elsewhere: valid, or refused before anything is allocated."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyview.runtime import ActionBounds, DiscreteActions, PolicySpec, Resize, VectorSpec, ViewSpec, load
from manyview.runtime.policy_file import MAX_SPEC_BYTES, PolicyFile, parse_policy_file, read_policy_file

MODEL = b"not a model"
SPEC = PolicySpec(
    views=(ViewSpec("front", 16, 24, 3, (480, 640)), ViewSpec("wrist", 16, 24, 3)),
    vectors=(VectorSpec("joints", 7),),
    frame_stack=3,
    vector_stack=2,
    actions=ActionBounds((-1.0, 0.0), (1.0, 2.5)),
    resize=Resize((84, 16), "pad"),
    memory=(VectorSpec("deterministic", 8),),
    control_hz=20.0,
)
CONTENTS = PolicyFile(SPEC, hashlib.sha256(MODEL).hexdigest(), 20, {"commit": "abc"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.json").write_text(json.dumps(CONTENTS.to_plain()))
    (tmp_path / "policy.onnx").write_bytes(MODEL)
    return tmp_path


def test_a_written_file_is_read_as_it_was(folder: Path) -> None:
    assert read_policy_file(folder) == (CONTENTS, MODEL)


@pytest.mark.parametrize("actions", [DiscreteActions(9), ActionBounds((0.0,), (1e-3,))])
def test_a_spec_survives_json(actions: Any) -> None:
    spec = PolicySpec(views=(ViewSpec("a", 1, 1, 1),), actions=actions)
    assert PolicySpec.from_plain(json.loads(json.dumps(spec.to_plain()))) == spec


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(plain: Any) -> None:
        for key in path[:-1]:
            plain = plain[key]
        plain[path[-1]] = value

    change.__name__ = "/".join(map(str, path)) + f"={value!r:.20}"
    return change


def view(**changes: Any) -> dict[str, Any]:
    return {"name": "front", "height": 16, "width": 24, "channels": 3, "camera_size": [48, 64], **changes}


HOSTILE = [
    put("format", value=2),
    put("format", value="1"),
    put("surplus", value=1),
    put("model", "file", value="../../etc/passwd"),
    put("model", "file", value="/etc/passwd"),
    put("model", "file", value="policy.onnx/../x"),
    put("model", "sha256", value="0" * 63),
    put("model", "sha256", value="G" * 64),
    put("model", "sha256", value=None),
    put("model", "opset", value="20"),
    put("training", value=[]),
    put("spec", value=[]),
    put("spec", "views", value=[]),
    put("spec", "views", value={"front": 1}),
    put("spec", "views", value=[view(name=f"v{i}") for i in range(65)]),
    put("spec", "views", value=[view(name=f"v{i}", height=8192, width=8192) for i in range(9)]),
    put("spec", "views", 0, value=view(height=10**9)),
    put("spec", "views", 0, value=view(height=10**400)),
    put("spec", "views", 0, value=view(height=16.0)),
    put("spec", "views", 0, value=view(height=True)),
    put("spec", "views", 0, value=view(height=0)),
    put("spec", "views", 0, value=view(width=-1)),
    put("spec", "views", 0, value=view(channels="3")),
    put("spec", "views", 0, value=view(name="wrist")),
    put("spec", "views", 0, value=view(name="joints")),
    put("spec", "views", 0, value=view(name="mask")),
    put("spec", "views", 0, value=view(name="a\x1b[2J")),
    put("spec", "views", 0, value=view(name="")),
    put("spec", "views", 0, value=view(name="a" * 101)),
    put("spec", "views", 0, value=view(extra=1)),
    put("spec", "views", 0, value=view(camera_size=[48])),
    put("spec", "views", 0, value=view(camera_size=[48, 10**9])),
    put("spec", "views", 0, value=view(camera_size="48x64")),
    put("spec", "frame_stack", value=65),
    put("spec", "frame_stack", value=None),
    put("spec", "vector_stack", value=0),
    put("spec", "vectors", 0, value={"name": "joints", "size": 10**6}),
    put("spec", "memory", 0, value={"name": "deterministic", "size": -1}),
    put("spec", "actions", value={"low": [1.0, 0.0], "high": [0.0, 1.0]}),
    put("spec", "actions", value={"low": [0.0], "high": [1.0, 1.0]}),
    put("spec", "actions", value={"low": [], "high": []}),
    put("spec", "actions", value={"low": [0.0, -1e300], "high": [1.0, 1e300]}),
    put("spec", "actions", value={"low": [0, 0], "high": [1, 10**400]}),
    put("spec", "actions", value={"low": [0.0, 0.0], "high": [1.0, "1"]}),
    put("spec", "actions", value={"num_actions": 10**9}),
    put("spec", "actions", value={"num_actions": 2, "low": [0.0]}),
    put("spec", "resize", value={"sizes": [10**6], "aspect": "pad"}),
    put("spec", "resize", value={"sizes": [], "aspect": "pad"}),
    put("spec", "resize", value={"sizes": [84], "aspect": "exec"}),
    put("spec", "control_hz", value="20"),
    put("inputs", value=[]),
    put("outputs", 0, "name", value="other"),
]


def test_a_view_without_a_camera_size_is_that_of_an_earlier_run() -> None:
    plain = json.loads(json.dumps(CONTENTS.to_plain()))["spec"]
    expected = PolicySpec.from_plain(plain)
    for part in plain["views"]:
        del part["camera_size"]
    views = tuple(replace(view, camera_size=None) for view in expected.views)
    assert PolicySpec.from_plain(plain) == replace(expected, views=views)


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_hostile_contents_are_refused(change: Callable[[Any], None], folder: Path) -> None:
    plain = CONTENTS.to_plain()
    plain = json.loads(json.dumps(plain))
    change(plain)
    (folder / "policy.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"policy\.json: .*(invalid|unknown|contradict|too large)") as error:
        load(folder)
    assert len(str(error.value)) < 1000
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    "change", [change for change in HOSTILE if change.__name__.startswith("spec")], ids=lambda change: change.__name__
)
def test_a_hostile_spec_is_refused_by_itself(change: Callable[[Any], None]) -> None:
    plain = json.loads(json.dumps(CONTENTS.to_plain()))
    change(plain)
    with pytest.raises(ValueError, match=r"invalid|too large"):
        PolicySpec.from_plain(plain["spec"])


def test_a_name_that_occurs_twice_is_refused() -> None:
    content = json.dumps(CONTENTS.to_plain())
    assert parse_policy_file(content.encode()) == CONTENTS
    with pytest.raises(ValueError, match="a name occurs twice"):
        parse_policy_file(content.replace('"opset": 20', '"opset": 19, "opset": 20').encode())


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"format": 1, "format": 1}', b'{"format": NaN}', b"[" * 100_000, b"\xff\xfe\x00", b"null"],
    ids=repr,
)
def test_what_is_not_strict_json_is_refused(content: bytes, folder: Path) -> None:
    (folder / "policy.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"policy\.json"):
        load(folder)


def test_infinite_numbers_are_refused() -> None:
    content = json.dumps(CONTENTS.to_plain()).replace("2.5", "Infinity").encode()
    with pytest.raises(ValueError, match="finite"):
        parse_policy_file(content)


def test_a_changed_model_is_refused(folder: Path) -> None:
    (folder / "policy.onnx").write_bytes(MODEL + b" ")
    with pytest.raises(ValueError, match="is not the file that was exported: expected SHA-256"):
        load(folder)


def test_a_model_that_onnxruntime_cannot_read_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.onnx cannot be loaded"):
        load(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "policy.onnx").unlink()
    with pytest.raises(FileNotFoundError, match=r"policy\.onnx is missing: expected a folder of `manyview export`"):
        load(folder)


@pytest.mark.parametrize("name", ["policy.json", "policy.onnx"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir], ids=["pipe", "link", "folder"]
)
def test_links_pipes_and_folders_are_refused_at_once(make: Callable[[Path], None], name: str, folder: Path) -> None:
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(ValueError, match=r"cannot be read|expected a regular file"):
        load(folder)


def test_a_huge_file_is_refused_unread(folder: Path) -> None:
    os.truncate(folder / "policy.json", MAX_SPEC_BYTES + 1)
    with pytest.raises(ValueError, match=f"at most {MAX_SPEC_BYTES:,} bytes"):
        load(folder)
