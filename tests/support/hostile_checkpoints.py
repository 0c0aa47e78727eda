"""Checkpoints as somebody with bad intentions would make them. Their checksums are right."""

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
from tests.support.corrupted_run import Victim

Attack = Callable[[Victim], None]
GIGABYTE = 2**30
EXECUTED = "EXECUTED"
"""The file that a payload makes."""


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def payload(victim: Victim) -> bytes:
    return pickle.dumps(Payload(victim.folder.path / EXECUTED))


def object_array(victim: Victim) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload(victim.folder.path / EXECUTED)], object), allow_pickle=True)
    return file.getvalue()


def torch_archive(victim: Victim) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", payload(victim))
    return file.getvalue()


def rewrite(victim: Victim, name: str, content: bytes) -> None:
    """A file of the newest checkpoint, and checksums that fit."""
    (victim.newest / name).write_bytes(content)
    files = {name: (victim.newest / name).read_bytes() for name in checkpoint.FILES}
    (victim.newest / checkpoint.CHECKSUMS_FILE).write_bytes(checkpoint.format_checksums(files))


def edit(victim: Victim, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    tree = json.loads((victim.newest / name).read_bytes())
    change(tree)
    rewrite(victim, name, json.dumps(tree).encode())


def put(name: str, path: str, value: Any) -> Attack:
    """One value of a file."""

    def change(tree: dict[str, Any]) -> None:
        *branches, leaf = path.split("/")
        for branch in branches:
            tree = tree[branch]
        tree[leaf] = value

    return lambda victim: edit(victim, name, change)


def text(name: str, content: bytes) -> Attack:
    return lambda victim: rewrite(victim, name, content)


def header(tensors: Any, data: bytes = b"") -> Attack:
    """A file of tensors with this header."""
    return lambda victim: rewrite(victim, TENSORS_FILE, safetensors(tensors, data))


def safetensors(tensors: Any, data: bytes) -> bytes:
    packed = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(packed)) + packed + data


def tensor(begin: int, end: int, shape: list[int], dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def stored(begin: str, change: Callable[[NDArray[Any]], None]) -> Attack:
    """The first tensor whose name begins so, changed."""

    def attack(victim: Victim) -> None:
        tensors = load((victim.newest / TENSORS_FILE).read_bytes())
        change(next(tensors[name] for name in sorted(tensors) if name.startswith(begin)))
        rewrite(victim, TENSORS_FILE, save(tensors))

    return attack


def not_numbers(tensor: NDArray[Any]) -> None:
    tensor.fill(float("nan"))


def past_its_memory(generator: NDArray[Any]) -> None:
    """As many numbers left as there are, and the next one behind the last."""
    generator[8:12] = np.array([624], "<i4").view(np.uint8)
    generator[16:24] = np.array([624], "<i8").view(np.uint8)


def all_ones(record: NDArray[Any]) -> None:
    record.fill(0xFF)


def segment(*parts: Callable[[bytes], bytes], count: int | None = None) -> Attack:
    """The newest segment with its parts changed, and the manifest that goes with it."""

    def attack(victim: Victim) -> None:
        path = victim.segments[-1]
        old = path.read_bytes()[:-32]
        _, begin, end, there = HEADER.unpack_from(old)
        sizes = [PART_SIZE.unpack_from(old, HEADER.size + PART_SIZE.size * part)[0] for part in range(there)]
        place, new = HEADER.size + PART_SIZE.size * there, []
        for size, change in zip(sizes, [*parts, *[bytes] * there], strict=False):
            new.append(change(old[place : place + size]))
            place += size
        head = HEADER.pack(MAGIC, begin, end, there if count is None else count)
        body = b"".join([head, *(PART_SIZE.pack(len(part)) for part in new), *new])
        digest = hashlib.sha256(body)
        path.write_bytes(body + digest.digest())

        def named(manifest: dict[str, Any]) -> None:
            manifest["segments"][-1][2] = digest.hexdigest()

        edit(victim, MANIFEST_FILE, named)

    return attack


def bomb(_: bytes) -> bytes:
    """A gigabyte of zeros, which says so."""
    compressor = zstandard.ZstdCompressor().compressobj(size=GIGABYTE)
    block = bytes(2**24)
    return b"".join([*(compressor.compress(block) for _ in range(GIGABYTE // len(block))), compressor.flush()])


def silent_bomb(_: bytes) -> bytes:
    """One that does not say how large it is."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    block = bytes(2**24)
    return b"".join([*(compressor.compress(block) for _ in range(64)), compressor.flush()])


def lying(part: bytes) -> bytes:
    """Says the right size, and unpacks to more."""
    right = zstandard.frame_content_size(part)
    raw = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compress(bytes(right + 2**20))
    # Magic; then a descriptor that promises eight bytes of content size, and a window of its own.
    return raw[:4] + bytes([0b11000000]) + raw[5:6] + struct.pack("<Q", right) + raw[6:]


def wide(part: bytes) -> bytes:
    """Asks for a window of terabytes."""
    right = zstandard.frame_content_size(part)
    raw = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compress(bytes(right))
    return raw[:4] + bytes([0b11000000, 0xFF]) + struct.pack("<Q", right) + raw[6:]


def raw(change: Callable[[bytearray], None]) -> Callable[[bytes], bytes]:
    """A part unpacked, changed and packed again."""

    def changed(part: bytes) -> bytes:
        content = bytearray(zstandard.ZstdDecompressor().decompress(part))
        change(content)
        return zstandard.ZstdCompressor().compress(bytes(content))

    return changed


def nan_action(content: bytearray) -> None:
    content[0:4] = struct.pack("<f", float("nan"))


def odd_truth(content: bytearray) -> None:
    content[12] = 7  # two floats of the action and one of the reward are before it


def overlap(manifest: dict[str, Any]) -> None:
    manifest["segments"][1][0] -= 5


def half_precision(victim: Victim) -> None:
    """An array of a kind that numpy does not have."""
    tensors = load_tensors((victim.newest / TENSORS_FILE).read_bytes())
    rewrite(victim, TENSORS_FILE, save_tensors({**tensors, "half": torch.zeros(1, dtype=torch.bfloat16)}))
    put(VALUES_FILE, "env/env/stacks/column", {checkpoint.ARRAY_KEY: "half"})(victim)


def link(name: str) -> Attack:
    """The file is a link to one that is outside of the run and fits."""

    def attack(victim: Victim) -> None:
        outside = victim.folder.path.with_name("outside")
        (victim.newest / name).rename(outside)
        (victim.newest / name).symlink_to(outside)

    return attack


def pipe(name: str) -> Attack:
    def attack(victim: Victim) -> None:
        (victim.newest / name).unlink()
        os.mkfifo(victim.newest / name)

    return attack


def linked_checkpoint(victim: Victim) -> None:
    outside, newest = victim.folder.path.with_name("outside"), victim.newest
    newest.rename(outside)
    newest.symlink_to(outside)


def device(victim: Victim) -> None:
    (victim.newest / VALUES_FILE).unlink()
    (victim.newest / VALUES_FILE).symlink_to("/dev/zero")


def linked_segment(victim: Victim) -> None:
    outside, path = victim.folder.path.with_name("outside"), victim.segments[-1]
    path.rename(outside)
    path.symlink_to(outside)


def sparse(victim: Victim) -> None:
    """Terabytes that take no room on the disk."""
    with (victim.newest / TENSORS_FILE).open("r+b") as file:
        file.truncate(2**42)


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return b'{"runner": ' + opening * depth + b"0" + closing * depth + b"}"


def nested_object(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"": found}
    return {"": found, "torch": "0"}


POINTER = {checkpoint.TENSOR_KEY: "../../etc/passwd"}
PCG = {"bit_generator": "PCG64", "state": {"state": 1, "inc": 1}, "has_uint32": 0, "uinteger": 0}
HUGE, NAN = 10**400, float("nan")

ATTACKS: dict[str, Attack] = {
    # Payloads that run when somebody loads them as Python objects.
    **{f"objects as {name}": lambda v, n=name: rewrite(v, n, payload(v)) for name in checkpoint.FILES},  # type: ignore[misc]
    "an object array as tensors": lambda victim: rewrite(victim, TENSORS_FILE, object_array(victim)),
    "an archive of PyTorch as tensors": lambda victim: rewrite(victim, TENSORS_FILE, torch_archive(victim)),
    "objects as a segment's records": lambda victim: segment(lambda _: payload(victim))(victim),
    "an object array as a segment's frames": lambda victim: segment(bytes, lambda _: object_array(victim))(victim),
    "a tensor type of objects": header({"x": tensor(0, 8, [1], "O")}, bytes(8)),
    # Segments.
    "a bomb in a segment": segment(bomb),
    "a bomb that says no size": segment(bytes, silent_bomb),
    "frames that lie about their size": segment(bytes, lying),
    "frames with a giant window": segment(bytes, wide),
    "records with bytes behind them": segment(lambda part: part + b"x"),
    "no parts": segment(count=0),
    "four thousand million parts": segment(count=2**32 - 1),
    "actions that are not numbers": segment(raw(nan_action)),
    "neither true nor false": segment(raw(odd_truth)),
    "a segment elsewhere": put(MANIFEST_FILE, "segments", [["../../etc", "passwd", ""]]),
    "a segment by its path": put(MANIFEST_FILE, "segments", "/etc/passwd"),
    "segments that overlap": lambda victim: edit(victim, MANIFEST_FILE, overlap),
    "a segment of negative steps": put(MANIFEST_FILE, "segments", [[-5, 5, "0" * 64]]),
    "a segment of a million million steps": put(MANIFEST_FILE, "segments", [[0, 10**12, "0" * 64]]),
    "no segments": put(MANIFEST_FILE, "segments", []),
    # Tensors.
    "a header of gigabytes": lambda victim: rewrite(victim, TENSORS_FILE, struct.pack("<Q", 2**62) + b"{}"),
    "a hundred thousand tensors": header({f"{i:05d}": tensor(0, 0, [0]) for i in range(100_000)}),
    "offsets that overlap": header({"x": tensor(0, 8, [8]), "y": tensor(4, 12, [8])}, bytes(12)),
    "negative offsets": header({"x": tensor(-8, 0, [8])}, bytes(8)),
    "offsets past the end": header({"x": tensor(0, 2**40, [2**40])}, bytes(8)),
    "shapes that overflow": header({"x": tensor(0, 8, [2**33, 2**33])}, bytes(8)),
    "empty shapes that overflow": header({"x": tensor(0, 0, [0, 2**62, 2**62])}),
    "a header that is a list": header([1, 2]),
    "one tensor twice": header(b'{"x":%b,"x":%b}' % ((json.dumps(tensor(0, 8, [8])).encode(),) * 2), bytes(8)),
    "no tensors": header({}),
    "a tensor elsewhere": put(VALUES_FILE, "agent", POINTER),
    "a pointer that points twice": put(VALUES_FILE, "agent", {**POINTER, checkpoint.ARRAY_KEY: "x"}),
    "a pointer that is a list": put(VALUES_FILE, "agent", {checkpoint.TENSOR_KEY: ["x"]}),
    "a tensor of sixteen bits as an array": half_precision,
    # JSON.
    "a name twice": text(VALUES_FILE, b'{"runner": {}, "runner": {}}'),
    "a list": text(VALUES_FILE, b"[]"),
    "not even text": text(MANIFEST_FILE, b"\xff\xfe\x00"),
    "half a letter": put(MANIFEST_FILE, "format", "\ud800\x1b[2J"),
    **{f"lists {depth} deep": text(VALUES_FILE, nested(depth, b"[", b"]")) for depth in (500, 980, 100_000)},
    **{f"objects {depth} deep": text(MANIFEST_FILE, nested(depth, b'{"":', b"}")) for depth in (300, 100_000)},
    "a million lists": text(VALUES_FILE, b'{"a":[' + b"[]," * 1_300_000 + b"[]]}"),
    "an integer of a million digits": text(VALUES_FILE, b'{"a": ' + b"9" * 10**6 + b"}"),
    "another format": put(MANIFEST_FILE, "format", 1),
    # Counters and the session.
    **{
        f"frames {value!r:.20}": put(VALUES_FILE, "counters/frames", value) for value in (NAN, HUGE, -7, 1.5, "1", None)
    },
    "another frame than its name": put(VALUES_FILE, "counters/frames", 46),
    **{f"{value!r:.20} steps": put(VALUES_FILE, "replay/inserted", value) for value in (0, -3, 2**70, HUGE, True, "9")},
    **{f"{value!r:.20} batches": put(VALUES_FILE, "sampler/drawn", value) for value in (-1, 2**70, 0.5, None, [1])},
    "batches of steps that will come": put(VALUES_FILE, "sampler/horizon", 10**6),
    **{
        f"good {name!r}": put(VALUES_FILE, "runner/last_good", name)
        for name in ("../../x", "/etc", "000000025/..", 5, "\0")
    },
    **{f"{value!r:.20} bytes of records": put(VALUES_FILE, "runner/metrics_bytes", value) for value in (-1, 2.5, HUGE)},
    **{f"{value!r:.20} seconds": put(VALUES_FILE, "runner/elapsed_s", value) for value in (NAN, float("inf"), "1")},
    "due for ever": put(VALUES_FILE, "runner/pending_jobs", ["evaluation"] * 1000),
    "no session": put(VALUES_FILE, "runner", None),
    # The agent.
    "an agent of nothing": put(VALUES_FILE, "agent/tensors", {}),
    "weights that are not numbers": stored("agent/tensors/", not_numbers),
    "moments that are not numbers": stored("agent/optimizers/", not_numbers),
    "a generator behind its memory": stored("agent/generators/", past_its_memory),
    "a newest step that none can be": stored("replay/newest/record", all_ones),
    "optimisers as a list": put(VALUES_FILE, "agent/optimizers", []),
    # The environment.
    **{
        f"generator {name}": put(VALUES_FILE, "env/env/env/rng", {**PCG, "bit_generator": name})
        for name in ("MT19937", "os.system", "__class__", 5)
    },
    "a generator before its memory": put(
        VALUES_FILE, "env/env/env/rng", {"bit_generator": "Philox", "buffer_pos": -(2**30), "state": {}}
    ),
    "numbers that are none": put(VALUES_FILE, "env/env/env/values", {"column": "x"}),
    "a column that is not there": put(VALUES_FILE, "env/env/env/values", {"step": 0, "column": 10**9, "row": 0}),
    "frames of another shape": put(VALUES_FILE, "env/env/stacks/column", [[1]]),
    "an episode of words": put(VALUES_FILE, "env/episode/return", "much"),
    "an environment of something else": put(VALUES_FILE, "env/spec/task", "toy/deep_sea"),
    "an environment that is a list": put(VALUES_FILE, "env", [1]),
    # What is no file.
    **{f"{name} is a link": link(name) for name in (*checkpoint.FILES, checkpoint.CHECKSUMS_FILE)},
    **{f"{name} is a pipe": pipe(name) for name in (*checkpoint.FILES, checkpoint.CHECKSUMS_FILE)},
    "a device": device,
    "the checkpoint is a link": linked_checkpoint,
    "a segment is a link": linked_segment,
    "a sparse file": sparse,
}
