"""Malicious checkpoints with valid checksums."""

import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from safetensors.numpy import load, save
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from manyview.data.segment_format import HEADER, MAGIC, PART_SIZE
from manyview.training import checkpoint
from manyview.training.checkpoint import MANIFEST_FILE, TENSORS_FILE, VALUES_FILE
from tests.support.corrupted_run import CorruptedRun

Attack = Callable[[CorruptedRun], None]
GIGABYTE = 2**30
EXECUTED_FILE = "EXECUTED"
"""File that a payload creates when it is unpickled."""


class Payload:
    """Object whose unpickling creates the file `marker`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def make_payload(run: CorruptedRun) -> bytes:
    return pickle.dumps(Payload(run.run_dir.path / EXECUTED_FILE))


def make_object_array(run: CorruptedRun) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload(run.run_dir.path / EXECUTED_FILE)], object), allow_pickle=True)
    return file.getvalue()


def make_torch_archive(run: CorruptedRun) -> bytes:
    """Return an archive as `torch.save` writes it, with a payload."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", make_payload(run))
    return file.getvalue()


def replace_file(run: CorruptedRun, name: str, content: bytes) -> None:
    """Replace a file of the newest checkpoint and update the checksums."""
    (run.newest_checkpoint / name).write_bytes(content)
    files = {name: (run.newest_checkpoint / name).read_bytes() for name in checkpoint.FILES}
    (run.newest_checkpoint / checkpoint.CHECKSUMS_FILE).write_bytes(checkpoint.format_checksums(files))


def edit_json(run: CorruptedRun, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a JSON file of the newest checkpoint."""
    tree = json.loads((run.newest_checkpoint / name).read_bytes())
    change(tree)
    replace_file(run, name, json.dumps(tree).encode())


def set_value(name: str, path: str, value: Any) -> Attack:
    """Return an attack that sets the value at a path such as `counters/frames`."""

    def change(tree: dict[str, Any]) -> None:
        *parents, key = path.split("/")
        for parent in parents:
            tree = tree[parent]
        tree[key] = value

    return lambda run: edit_json(run, name, change)


def set_content(name: str, content: bytes) -> Attack:
    """Return an attack that replaces the content of a file."""
    return lambda run: replace_file(run, name, content)


def set_tensors_header(tensors: Any, data: bytes = b"") -> Attack:
    """Return an attack that replaces the tensors file by one with this header."""
    return lambda run: replace_file(run, TENSORS_FILE, format_safetensors(tensors, data))


def format_safetensors(tensors: Any, data: bytes) -> bytes:
    """Return a safetensors file with a header as bytes or as JSON values."""
    packed = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(packed)) + packed + data


def describe_tensor(begin: int, end: int, shape: list[int], dtype: str = "U8") -> dict[str, Any]:
    """Return the header entry of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def edit_tensor(prefix: str, change: Callable[[NDArray[Any]], None]) -> Attack:
    """Return an attack that changes the first tensor whose name starts with `prefix`."""

    def attack(run: CorruptedRun) -> None:
        tensors = load((run.newest_checkpoint / TENSORS_FILE).read_bytes())
        change(next(tensors[name] for name in sorted(tensors) if name.startswith(prefix)))
        replace_file(run, TENSORS_FILE, save(tensors))

    return attack


def fill_with_nan(tensor: NDArray[Any]) -> None:
    tensor.fill(float("nan"))


def move_past_state(generator: NDArray[Any]) -> None:
    """Make a Mersenne Twister read past its 624 state words."""
    generator[8:12] = np.array([624], "<i4").view(np.uint8)
    generator[16:24] = np.array([624], "<i8").view(np.uint8)


def fill_with_ones(record: NDArray[Any]) -> None:
    record.fill(0xFF)


def edit_segment(*parts: Callable[[bytes], bytes], count: int | None = None) -> Attack:
    """Return an attack that changes parts of the newest segment.

    The manifest gets the new digest. `count` overrides the number of parts in the header.
    """

    def attack(run: CorruptedRun) -> None:
        path = run.segment_files[-1]
        old = path.read_bytes()[:-32]
        _, begin, end, num_parts = HEADER.unpack_from(old)
        sizes = [PART_SIZE.unpack_from(old, HEADER.size + PART_SIZE.size * part)[0] for part in range(num_parts)]
        offset, new = HEADER.size + PART_SIZE.size * num_parts, []
        for size, change in zip(sizes, [*parts, *[bytes] * num_parts], strict=False):
            new.append(change(old[offset : offset + size]))
            offset += size
        head = HEADER.pack(MAGIC, begin, end, num_parts if count is None else count)
        body = b"".join([head, *(PART_SIZE.pack(len(part)) for part in new), *new])
        digest = hashlib.sha256(body)
        path.write_bytes(body + digest.digest())

        def update_digest(manifest: dict[str, Any]) -> None:
            manifest["segments"][-1][2] = digest.hexdigest()

        edit_json(run, MANIFEST_FILE, update_digest)

    return attack


def make_bomb(_: bytes) -> bytes:
    """Return a compressed gigabyte of zeros that declares its content size."""
    compressor = zstandard.ZstdCompressor().compressobj(size=GIGABYTE)
    block = bytes(2**24)
    return b"".join([*(compressor.compress(block) for _ in range(GIGABYTE // len(block))), compressor.flush()])


def make_bomb_without_size(_: bytes) -> bytes:
    """Return a compressed gigabyte of zeros without a content size."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    block = bytes(2**24)
    return b"".join([*(compressor.compress(block) for _ in range(64)), compressor.flush()])


def exceed_declared_size(part: bytes) -> bytes:
    """Return a frame that declares the right content size and unpacks to more."""
    content_size = zstandard.frame_content_size(part)
    frame = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compress(
        bytes(content_size + 2**20)
    )
    # Magic number, then a descriptor for a content size of 8 bytes and a window descriptor.
    return frame[:4] + bytes([0b11000000]) + frame[5:6] + struct.pack("<Q", content_size) + frame[6:]


def request_huge_window(part: bytes) -> bytes:
    """Return a frame whose decompression needs a window of terabytes."""
    content_size = zstandard.frame_content_size(part)
    frame = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compress(bytes(content_size))
    return frame[:4] + bytes([0b11000000, 0xFF]) + struct.pack("<Q", content_size) + frame[6:]


def edit_unpacked(change: Callable[[bytearray], None]) -> Callable[[bytes], bytes]:
    """Return a function that unpacks a part, changes it and packs it again."""

    def edit_part(part: bytes) -> bytes:
        content = bytearray(zstandard.ZstdDecompressor().decompress(part))
        change(content)
        return zstandard.ZstdCompressor().compress(bytes(content))

    return edit_part


def set_nan_action(content: bytearray) -> None:
    content[0:4] = struct.pack("<f", float("nan"))


def set_invalid_bool(content: bytearray) -> None:
    content[12] = 7  # after two floats of the action and one of the reward


def overlap_segments(manifest: dict[str, Any]) -> None:
    """Make the second segment overlap the first."""
    manifest["segments"][1][0] -= 5


def store_bfloat16_array(run: CorruptedRun) -> None:
    """Store an array as bfloat16, which numpy lacks."""
    tensors = load_tensors((run.newest_checkpoint / TENSORS_FILE).read_bytes())
    replace_file(run, TENSORS_FILE, save_tensors({**tensors, "half": torch.zeros(1, dtype=torch.bfloat16)}))
    set_value(VALUES_FILE, "env/env/stacks/column", {checkpoint.ARRAY_KEY: "half"})(run)


def replace_with_link(name: str) -> Attack:
    """Return an attack that moves a file out of the run and leaves a symlink to it."""

    def attack(run: CorruptedRun) -> None:
        outside = run.run_dir.path.with_name("outside")
        (run.newest_checkpoint / name).rename(outside)
        (run.newest_checkpoint / name).symlink_to(outside)

    return attack


def replace_with_pipe(name: str) -> Attack:
    """Return an attack that replaces a file by a named pipe."""

    def attack(run: CorruptedRun) -> None:
        (run.newest_checkpoint / name).unlink()
        os.mkfifo(run.newest_checkpoint / name)

    return attack


def link_checkpoint(run: CorruptedRun) -> None:
    """Move the newest checkpoint out of the run and leave a symlink to it."""
    outside, newest = run.run_dir.path.with_name("outside"), run.newest_checkpoint
    newest.rename(outside)
    newest.symlink_to(outside)


def link_device(run: CorruptedRun) -> None:
    """Replace the values file by a symlink to `/dev/zero`."""
    (run.newest_checkpoint / VALUES_FILE).unlink()
    (run.newest_checkpoint / VALUES_FILE).symlink_to("/dev/zero")


def link_segment(run: CorruptedRun) -> None:
    """Move the newest segment out of the run and leave a symlink to it."""
    outside, path = run.run_dir.path.with_name("outside"), run.segment_files[-1]
    path.rename(outside)
    path.symlink_to(outside)


def make_sparse(run: CorruptedRun) -> None:
    """Extend the tensors file to terabytes that take no disk space."""
    with (run.newest_checkpoint / TENSORS_FILE).open("r+b") as file:
        file.truncate(2**42)


def format_nested_json(depth: int, opening: bytes, closing: bytes) -> bytes:
    return b'{"runner": ' + opening * depth + b"0" + closing * depth + b"}"


def make_nested_object(depth: int) -> dict[str, Any]:
    """Return a dictionary of dictionaries, `depth` levels deep."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"": value}
    return {"": value, "torch": "0"}


POINTER = {checkpoint.TENSOR_KEY: "../../etc/passwd"}
PCG64_STATE = {"bit_generator": "PCG64", "state": {"state": 1, "inc": 1}, "has_uint32": 0, "uinteger": 0}
HUGE_INT, NAN = 10**400, float("nan")

ATTACKS: dict[str, Attack] = {
    # Payloads that run when they are unpickled.
    **{f"objects as {name}": lambda v, n=name: replace_file(v, n, make_payload(v)) for name in checkpoint.FILES},  # type: ignore[misc]
    "an object array as tensors": lambda run: replace_file(run, TENSORS_FILE, make_object_array(run)),
    "an archive of PyTorch as tensors": lambda run: replace_file(run, TENSORS_FILE, make_torch_archive(run)),
    "objects as a segment's records": lambda run: edit_segment(lambda _: make_payload(run))(run),
    "an object array as a segment's frames": lambda run: edit_segment(bytes, lambda _: make_object_array(run))(run),
    "a tensor type of objects": set_tensors_header({"x": describe_tensor(0, 8, [1], "O")}, bytes(8)),
    # Segments.
    "a bomb in a segment": edit_segment(make_bomb),
    "a bomb that says no size": edit_segment(bytes, make_bomb_without_size),
    "frames that lie about their size": edit_segment(bytes, exceed_declared_size),
    "frames with a giant window": edit_segment(bytes, request_huge_window),
    "records with bytes behind them": edit_segment(lambda part: part + b"x"),
    "no parts": edit_segment(count=0),
    "four thousand million parts": edit_segment(count=2**32 - 1),
    "actions that are not numbers": edit_segment(edit_unpacked(set_nan_action)),
    "neither true nor false": edit_segment(edit_unpacked(set_invalid_bool)),
    "a segment elsewhere": set_value(MANIFEST_FILE, "segments", [["../../etc", "passwd", ""]]),
    "a segment by its path": set_value(MANIFEST_FILE, "segments", "/etc/passwd"),
    "segments that overlap": lambda run: edit_json(run, MANIFEST_FILE, overlap_segments),
    "a segment of negative steps": set_value(MANIFEST_FILE, "segments", [[-5, 5, "0" * 64]]),
    "a segment of a million million steps": set_value(MANIFEST_FILE, "segments", [[0, 10**12, "0" * 64]]),
    "no segments": set_value(MANIFEST_FILE, "segments", []),
    # Tensors.
    "a header of gigabytes": lambda run: replace_file(run, TENSORS_FILE, struct.pack("<Q", 2**62) + b"{}"),
    "a hundred thousand tensors": set_tensors_header({f"{i:05d}": describe_tensor(0, 0, [0]) for i in range(100_000)}),
    "offsets that overlap": set_tensors_header(
        {"x": describe_tensor(0, 8, [8]), "y": describe_tensor(4, 12, [8])}, bytes(12)
    ),
    "negative offsets": set_tensors_header({"x": describe_tensor(-8, 0, [8])}, bytes(8)),
    "offsets past the end": set_tensors_header({"x": describe_tensor(0, 2**40, [2**40])}, bytes(8)),
    "shapes that overflow": set_tensors_header({"x": describe_tensor(0, 8, [2**33, 2**33])}, bytes(8)),
    "empty shapes that overflow": set_tensors_header({"x": describe_tensor(0, 0, [0, 2**62, 2**62])}),
    "a header that is a list": set_tensors_header([1, 2]),
    "one tensor twice": set_tensors_header(
        b'{"x":%b,"x":%b}' % ((json.dumps(describe_tensor(0, 8, [8])).encode(),) * 2), bytes(8)
    ),
    "no tensors": set_tensors_header({}),
    "a tensor elsewhere": set_value(VALUES_FILE, "agent", POINTER),
    "a pointer that points twice": set_value(VALUES_FILE, "agent", {**POINTER, checkpoint.ARRAY_KEY: "x"}),
    "a pointer that is a list": set_value(VALUES_FILE, "agent", {checkpoint.TENSOR_KEY: ["x"]}),
    "a tensor of sixteen bits as an array": store_bfloat16_array,
    # JSON.
    "a name twice": set_content(VALUES_FILE, b'{"runner": {}, "runner": {}}'),
    "a list": set_content(VALUES_FILE, b"[]"),
    "not even text": set_content(MANIFEST_FILE, b"\xff\xfe\x00"),
    "half a letter": set_value(MANIFEST_FILE, "format", "\ud800\x1b[2J"),
    **{
        f"lists {depth} deep": set_content(VALUES_FILE, format_nested_json(depth, b"[", b"]"))
        for depth in (500, 980, 100_000)
    },
    **{
        f"objects {depth} deep": set_content(MANIFEST_FILE, format_nested_json(depth, b'{"":', b"}"))
        for depth in (300, 100_000)
    },
    "a million lists": set_content(VALUES_FILE, b'{"a":[' + b"[]," * 1_300_000 + b"[]]}"),
    "an integer of a million digits": set_content(VALUES_FILE, b'{"a": ' + b"9" * 10**6 + b"}"),
    "another format": set_value(MANIFEST_FILE, "format", 1),
    # Counters and the runner state.
    **{
        f"frames {value!r:.20}": set_value(VALUES_FILE, "counters/frames", value)
        for value in (NAN, HUGE_INT, -7, 1.5, "1", None)
    },
    "another frame than its name": set_value(VALUES_FILE, "counters/frames", 46),
    **{
        f"{value!r:.20} steps": set_value(VALUES_FILE, "replay/inserted", value)
        for value in (0, -3, 2**70, HUGE_INT, True, "9")
    },
    **{
        f"{value!r:.20} batches": set_value(VALUES_FILE, "sampler/drawn", value)
        for value in (-1, 2**70, 0.5, None, [1])
    },
    "batches of steps that will come": set_value(VALUES_FILE, "sampler/horizon", 10**6),
    **{
        f"good {name!r}": set_value(VALUES_FILE, "runner/last_good", name)
        for name in ("../../x", "/etc", "000000025/..", 5, "\0")
    },
    **{
        f"{value!r:.20} bytes of records": set_value(VALUES_FILE, "runner/metrics_bytes", value)
        for value in (-1, 2.5, HUGE_INT)
    },
    **{
        f"{value!r:.20} seconds": set_value(VALUES_FILE, "runner/elapsed_s", value)
        for value in (NAN, float("inf"), "1")
    },
    "due for ever": set_value(VALUES_FILE, "runner/pending_jobs", ["evaluation"] * 1000),
    "no session": set_value(VALUES_FILE, "runner", None),
    # The agent.
    "an agent of nothing": set_value(VALUES_FILE, "agent/tensors", {}),
    "weights that are not numbers": edit_tensor("agent/tensors/", fill_with_nan),
    "moments that are not numbers": edit_tensor("agent/optimizers/", fill_with_nan),
    "a generator behind its memory": edit_tensor("agent/generators/", move_past_state),
    "a newest step that none can be": edit_tensor("replay/newest/record", fill_with_ones),
    "optimisers as a list": set_value(VALUES_FILE, "agent/optimizers", []),
    # The environment.
    **{
        f"generator {name}": set_value(VALUES_FILE, "env/env/env/rng", {**PCG64_STATE, "bit_generator": name})
        for name in ("MT19937", "os.system", "__class__", 5)
    },
    "a generator before its memory": set_value(
        VALUES_FILE, "env/env/env/rng", {"bit_generator": "Philox", "buffer_pos": -(2**30), "state": {}}
    ),
    "numbers that are none": set_value(VALUES_FILE, "env/env/env/values", {"column": "x"}),
    "a column that is not there": set_value(VALUES_FILE, "env/env/env/values", {"step": 0, "column": 10**9, "row": 0}),
    "frames of another shape": set_value(VALUES_FILE, "env/env/stacks/column", [[1]]),
    "an episode of words": set_value(VALUES_FILE, "env/episode/return", "much"),
    "an environment of something else": set_value(VALUES_FILE, "env/spec/task", "toy/deep_sea"),
    "an environment that is a list": set_value(VALUES_FILE, "env", [1]),
    # Links, pipes and devices in place of files.
    **{f"{name} is a link": replace_with_link(name) for name in (*checkpoint.FILES, checkpoint.CHECKSUMS_FILE)},
    **{f"{name} is a pipe": replace_with_pipe(name) for name in (*checkpoint.FILES, checkpoint.CHECKSUMS_FILE)},
    "a device": link_device,
    "the checkpoint is a link": link_checkpoint,
    "a segment is a link": link_segment,
    "a sparse file": make_sparse,
}
