"""Untrusted `policy.json` and `policy.onnx`: loaded, or refused before allocation."""

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


def test_a_written_file_is_read_unchanged(folder: Path) -> None:
    assert read_policy_file(folder) == (CONTENTS, MODEL)


@pytest.mark.parametrize("actions", [DiscreteActions(9), ActionBounds((0.0,), (1e-3,))])
def test_a_spec_survives_json(actions: Any) -> None:
    spec = PolicySpec(views=(ViewSpec("a", 1, 1, 1),), actions=actions)
    assert PolicySpec.from_plain(json.loads(json.dumps(spec.to_plain()))) == spec


def set_value(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(plain: Any) -> None:
        for key in path[:-1]:
            plain = plain[key]
        plain[path[-1]] = value

    change.__name__ = "/".join(map(str, path)) + f"={value!r:.20}"
    return change


def make_view(**changes: Any) -> dict[str, Any]:
    return {"name": "front", "height": 16, "width": 24, "channels": 3, "camera_size": [48, 64], **changes}


HOSTILE_CHANGES = [
    set_value("format", value=2),
    set_value("format", value="1"),
    set_value("surplus", value=1),
    set_value("model", "file", value="../../etc/passwd"),
    set_value("model", "file", value="/etc/passwd"),
    set_value("model", "file", value="policy.onnx/../x"),
    set_value("model", "sha256", value="0" * 63),
    set_value("model", "sha256", value="G" * 64),
    set_value("model", "sha256", value=None),
    set_value("model", "opset", value="20"),
    set_value("training", value=[]),
    set_value("spec", value=[]),
    set_value("spec", "views", value=[]),
    set_value("spec", "views", value={"front": 1}),
    set_value("spec", "views", value=[make_view(name=f"v{i}") for i in range(65)]),
    set_value("spec", "views", value=[make_view(name=f"v{i}", height=8192, width=8192) for i in range(9)]),
    set_value("spec", "views", 0, value=make_view(height=10**9)),
    set_value("spec", "views", 0, value=make_view(height=10**400)),
    set_value("spec", "views", 0, value=make_view(height=16.0)),
    set_value("spec", "views", 0, value=make_view(height=True)),
    set_value("spec", "views", 0, value=make_view(height=0)),
    set_value("spec", "views", 0, value=make_view(width=-1)),
    set_value("spec", "views", 0, value=make_view(channels="3")),
    set_value("spec", "views", 0, value=make_view(name="wrist")),
    set_value("spec", "views", 0, value=make_view(name="joints")),
    set_value("spec", "views", 0, value=make_view(name="mask")),
    set_value("spec", "views", 0, value=make_view(name="a\x1b[2J")),
    set_value("spec", "views", 0, value=make_view(name="")),
    set_value("spec", "views", 0, value=make_view(name="a" * 101)),
    set_value("spec", "views", 0, value=make_view(extra=1)),
    set_value("spec", "views", 0, value=make_view(camera_size=[48])),
    set_value("spec", "views", 0, value=make_view(camera_size=[48, 10**9])),
    set_value("spec", "views", 0, value=make_view(camera_size="48x64")),
    set_value("spec", "frame_stack", value=65),
    set_value("spec", "frame_stack", value=None),
    set_value("spec", "vector_stack", value=0),
    set_value("spec", "vectors", 0, value={"name": "joints", "size": 10**6}),
    set_value("spec", "memory", 0, value={"name": "deterministic", "size": -1}),
    set_value("spec", "actions", value={"low": [1.0, 0.0], "high": [0.0, 1.0]}),
    set_value("spec", "actions", value={"low": [0.0], "high": [1.0, 1.0]}),
    set_value("spec", "actions", value={"low": [], "high": []}),
    set_value("spec", "actions", value={"low": [0.0, -1e300], "high": [1.0, 1e300]}),
    set_value("spec", "actions", value={"low": [0, 0], "high": [1, 10**400]}),
    set_value("spec", "actions", value={"low": [0.0, 0.0], "high": [1.0, "1"]}),
    set_value("spec", "actions", value={"num_actions": 10**9}),
    set_value("spec", "actions", value={"num_actions": 2, "low": [0.0]}),
    set_value("spec", "resize", value={"sizes": [10**6], "aspect": "pad"}),
    set_value("spec", "resize", value={"sizes": [], "aspect": "pad"}),
    set_value("spec", "resize", value={"sizes": [84], "aspect": "exec"}),
    set_value("spec", "control_hz", value="20"),
    set_value("inputs", value=[]),
    set_value("outputs", 0, "name", value="other"),
]


def test_views_of_earlier_runs_may_have_no_camera_size() -> None:
    plain = json.loads(json.dumps(CONTENTS.to_plain()))["spec"]
    expected = PolicySpec.from_plain(plain)
    for view_entry in plain["views"]:
        del view_entry["camera_size"]
    views = tuple(replace(view, camera_size=None) for view in expected.views)
    assert PolicySpec.from_plain(plain) == replace(expected, views=views)


@pytest.mark.parametrize("change", HOSTILE_CHANGES, ids=lambda change: change.__name__)
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
    "change",
    [change for change in HOSTILE_CHANGES if change.__name__.startswith("spec")],
    ids=lambda change: change.__name__,
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
def test_invalid_json_is_refused(content: bytes, folder: Path) -> None:
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
