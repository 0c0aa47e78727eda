"""Hostile repositories: nothing of them is kept, nothing outside of the folder is written, the reason is one line."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manyview.cli.main import main
from manyview.deploy.hub import pull_run
from manyview.deploy.shared_run import write_shared_run
from manyview.training import checkpoint
from tests.support.corrupted_run import CorruptedRun
from tests.support.fake_hub import FakeHub, Repository, use_fake_hub

PULL = pytest.mark.attack("a hostile repository on the hub is rejected in one line, and nothing of it is kept")
NAME = "mallory/policy"
Trap = Callable[[Repository], object]


@pytest.fixture(scope="session")
def shared(whole: CorruptedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared_run(whole.run_dir.path, tmp_path_factory.mktemp("shared") / "run")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with use_fake_hub(monkeypatch, tmp_path) as hub:
        yield hub


def add(name: str, content: bytes = b"x") -> Trap:
    return lambda repository: repository.files.update({name: content})


def lie(name: str, **fields: Any) -> Trap:
    """List a file with other properties than it has."""

    def harm(repository: Repository) -> None:
        repository.files.setdefault(name, b"x")
        repository.listing_overrides[name] = fields

    return harm


def find(repository: Repository, name: str) -> str:
    return name if name in repository.files else next(path for path in repository.files if path.endswith(name))


def write(name: str, content: bytes) -> Trap:
    return lambda repository: repository.files.update({find(repository, name): content})


def put(name: str, **changes: Any) -> Trap:
    def harm(repository: Repository) -> None:
        path = find(repository, name)
        repository.files[path] = json.dumps({**json.loads(repository.files[path]), **changes}).encode()

    return harm


def remove(name: str) -> Trap:
    return lambda repository: repository.files.pop(find(repository, name))


def remove_mark(repository: Repository) -> None:
    manifest = json.loads(repository.files["manifest.json"])
    del manifest["shared"]
    repository.files["manifest.json"] = json.dumps(manifest).encode()


def copy_checkpoint(repository: Repository) -> None:
    for name, content in list(repository.files.items()):
        if name.startswith("checkpoints/"):
            repository.files[name.replace(name.split("/")[1], "999999999")] = content


def forge_tensors(repository: Repository) -> None:
    """Replace the tensors by a file with a huge header, with matching checksums."""
    tensors, sums = (find(repository, name) for name in (checkpoint.TENSORS_FILE, checkpoint.CHECKSUMS_FILE))
    before = hashlib.sha256(repository.files[tensors]).hexdigest()
    repository.files[tensors] = (2**40).to_bytes(8, "little") + b"{}"
    after = hashlib.sha256(repository.files[tensors]).hexdigest()
    repository.files[sums] = repository.files[sums].replace(before.encode(), after.encode())


def add_model_alone(repository: Repository) -> None:
    repository.files.pop("export/policy.json", None)
    repository.files["export/policy.onnx"] = b"{}"


CODE = [
    *("pytorch_model.bin", "model.pt", "model.pth", "agent.pkl", "last.ckpt", "train.py", "weights.npy", "policy.pt2"),
    *("checkpoints/000000060/state.PKL", "config.json.py", "a.pkl.json", "lib.so", "all.zip"),
]
TRAPS: dict[str, tuple[Trap, str]] = {
    **{f"code {name}": (add(name), "can hold code") for name in CODE},
    **{
        f"path {name!r}": (add(name), "invalid file name")
        for name in (
            "../escape",
            "/etc/escape",
            "a/../../escape",
            "a//b",
            "./x",
            "a\\..\\b",
            "x\x1b[2J",
            "a/..",
            "a\nb",
        )
    },
    "huge tensors": (
        lambda repository: lie(find(repository, "state.safetensors"), size=2**40)(repository),
        "too large: expected at most",
    ),
    "huge config": (lie("config.json", size=2**30), "config.json is too large"),
    "huge video": (lie("replay.mp4", size=2**33), "replay.mp4 is too large"),
    "negative size": (lie("config.json", size=-1), "too large"),
    "size is text": (lie("config.json", size="1"), "too large"),
    "longer than listed": (lie("README.md", size=3), "another size than listed: expected 3 bytes, got more"),
    "shorter than listed": (lie("README.md", size=2**19), "another size than listed"),
    "many files": (
        lambda repository: repository.files.update({f"{index}.txt": b"" for index in range(200)}),
        "too many files",
    ),
    "no config": (remove("config.json"), "got no config.json"),
    "no checksums": (remove("SHA256SUMS"), "expected one checkpoint with"),
    "no mark": (remove_mark, "expected `shared` in manifest.json"),
    "two checkpoints": (copy_checkpoint, "expected one checkpoint"),
    "config is a git link": (write("config.json", b"../../../etc/passwd"), "config.json"),
    "unknown setting": (put("config.json", surprise=1), "unknown setting surprise"),
    "huge network": (put("config.json", env={"image_size": 10**9}), "image_size"),
    "deep manifest": (write("manifest.json", b"[" * 10**5), "JSON"),
    "changed weights": (write("state.safetensors", b"x" * 100), "is not the file that was written"),
    "forged tensors": (forge_tensors, "header is too large"),
    "forged export": (
        lambda repository: [add(f"export/{name}", b"{}")(repository) for name in ("policy.json", "policy.onnx")],
        "policy.json",
    ),
    "half an export": (add_model_alone, "policy.json is missing"),
}


@PULL
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", TRAPS)
def test_a_hostile_repository_is_refused(
    name: str,
    shared: Path,
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trap, reason = TRAPS[name]
    (place := tmp_path / "inner" / "place").mkdir(parents=True)
    monkeypatch.chdir(place)
    trap(hub.add_repository(NAME, shared))
    assert main(["hub", "pull", NAME]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert reason in lines[-1]
    assert all(line.isprintable() for line in lines)
    left = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert not left, f"kept {left}"
    assert [path.name for path in (place / "runs" / "hub" / "mallory").iterdir()] == []


@PULL
@pytest.mark.parametrize(
    "trap", [name for name, (_, reason) in TRAPS.items() if reason in ("can hold code", "too large")]
)
def test_nothing_is_downloaded_before_all_names_and_sizes_are_checked(
    trap: str, shared: Path, hub: FakeHub, tmp_path: Path
) -> None:
    TRAPS[trap][0](hub.add_repository(NAME, shared))
    with pytest.raises(ValueError, match=r"code|too large"):
        pull_run(NAME, tmp_path / "pulled")
    assert not [request for request in hub.requests if "/resolve/" in request]


@PULL
def test_an_earlier_folder_survives_a_hostile_update(shared: Path, hub: FakeHub, tmp_path: Path) -> None:
    repository = hub.add_repository(NAME, shared)
    folder = pull_run(NAME, tmp_path / "pulled")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    forge_tensors(repository)
    with pytest.raises(ValueError, match="header is too large"):
        pull_run(NAME, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_harmless_other_files_are_left_out_and_named(shared: Path, hub: FakeHub, tmp_path: Path) -> None:
    repository = hub.add_repository(NAME, shared)
    repository.files.update({"LICENSE": b"MIT", "notes/results.csv": b"1,2"})
    lines: list[str] = []
    folder = pull_run(NAME, tmp_path / "pulled", log=lines.append)
    assert "left out, not files of a shared run: LICENSE, notes/results.csv" in lines
    assert not (folder / "LICENSE").exists()
    assert not (folder / ".gitattributes").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(shared: Path, hub: FakeHub, tmp_path: Path) -> None:
    hub.add_repository(NAME, shared)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError, match="exists"):
        pull_run(NAME, tmp_path / "link")
    assert not list((tmp_path / "target").iterdir())
