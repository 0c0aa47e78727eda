"""Hostile repositories on the hub are rejected in one line, and nothing of them is kept."""

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
REPOSITORY_ID = "mallory/policy"
Attack = Callable[[Repository], object]
"""Function that changes a repository."""


@pytest.fixture(scope="session")
def shared_run(intact_run: CorruptedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a shared run."""
    return write_shared_run(intact_run.run_dir.path, tmp_path_factory.mktemp("shared") / "run")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with use_fake_hub(monkeypatch, tmp_path) as hub:
        yield hub


def add_file(name: str, content: bytes = b"x") -> Attack:
    return lambda repository: repository.files.update({name: content})


def override_listing(name: str, **fields: Any) -> Attack:
    """List a file with other properties than it has."""

    def edit(repository: Repository) -> None:
        repository.files.setdefault(name, b"x")
        repository.listing_overrides[name] = fields

    return edit


def find_path(repository: Repository, name: str) -> str:
    """Return the path of the file with this name or ending."""
    return name if name in repository.files else next(path for path in repository.files if path.endswith(name))


def replace_file(name: str, content: bytes) -> Attack:
    return lambda repository: repository.files.update({find_path(repository, name): content})


def set_fields(name: str, **changes: Any) -> Attack:
    """Change fields of a JSON file."""

    def edit(repository: Repository) -> None:
        path = find_path(repository, name)
        repository.files[path] = json.dumps({**json.loads(repository.files[path]), **changes}).encode()

    return edit


def remove_file(name: str) -> Attack:
    return lambda repository: repository.files.pop(find_path(repository, name))


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
    tensors, sums = (find_path(repository, name) for name in (checkpoint.TENSORS_FILE, checkpoint.CHECKSUMS_FILE))
    before = hashlib.sha256(repository.files[tensors]).hexdigest()
    repository.files[tensors] = (2**40).to_bytes(8, "little") + b"{}"
    after = hashlib.sha256(repository.files[tensors]).hexdigest()
    repository.files[sums] = repository.files[sums].replace(before.encode(), after.encode())


def add_model_only(repository: Repository) -> None:
    repository.files.pop("export/policy.json", None)
    repository.files["export/policy.onnx"] = b"{}"


CODE_FILES = [
    *("pytorch_model.bin", "model.pt", "model.pth", "agent.pkl", "last.ckpt", "train.py", "weights.npy", "policy.pt2"),
    *("checkpoints/000000060/state.PKL", "config.json.py", "a.pkl.json", "lib.so", "all.zip"),
]
ATTACKS: dict[str, tuple[Attack, str]] = {
    **{f"code {name}": (add_file(name), "can hold code") for name in CODE_FILES},
    **{
        f"path {name!r}": (add_file(name), "invalid file name")
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
        lambda repository: override_listing(find_path(repository, "state.safetensors"), size=2**40)(repository),
        "too large: expected at most",
    ),
    "huge config": (override_listing("config.json", size=2**30), "config.json is too large"),
    "huge video": (override_listing("replay.mp4", size=2**33), "replay.mp4 is too large"),
    "negative size": (override_listing("config.json", size=-1), "too large"),
    "size is text": (override_listing("config.json", size="1"), "too large"),
    "longer than listed": (
        override_listing("README.md", size=3),
        "another size than listed: expected 3 bytes, got more",
    ),
    "shorter than listed": (override_listing("README.md", size=2**19), "another size than listed"),
    "many files": (
        lambda repository: repository.files.update({f"{index}.txt": b"" for index in range(200)}),
        "too many files",
    ),
    "no config": (remove_file("config.json"), "got no config.json"),
    "no checksums": (remove_file("SHA256SUMS"), "expected one checkpoint with"),
    "no mark": (remove_mark, "expected `shared` in manifest.json"),
    "two checkpoints": (copy_checkpoint, "expected one checkpoint"),
    "config is a git link": (replace_file("config.json", b"../../../etc/passwd"), "config.json"),
    "unknown setting": (set_fields("config.json", surprise=1), "unknown setting surprise"),
    "huge network": (set_fields("config.json", env={"image_size": 10**9}), "image_size"),
    "deep manifest": (replace_file("manifest.json", b"[" * 10**5), "JSON"),
    "changed weights": (replace_file("state.safetensors", b"x" * 100), "is not the file that was written"),
    "forged tensors": (forge_tensors, "header is too large"),
    "forged export": (
        lambda repository: [add_file(f"export/{name}", b"{}")(repository) for name in ("policy.json", "policy.onnx")],
        "policy.json",
    ),
    "half an export": (add_model_only, "policy.json is missing"),
}


@PULL
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_repository_is_refused(
    name: str,
    shared_run: Path,
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    attack, reason = ATTACKS[name]
    (working_dir := tmp_path / "inner" / "place").mkdir(parents=True)
    monkeypatch.chdir(working_dir)
    attack(hub.add_repository(REPOSITORY_ID, shared_run))
    assert main(["hub", "pull", REPOSITORY_ID]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert reason in lines[-1]
    assert all(line.isprintable() for line in lines)
    leftovers = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert not leftovers, f"kept {leftovers}"
    assert [path.name for path in (working_dir / "runs" / "hub" / "mallory").iterdir()] == []


@PULL
@pytest.mark.parametrize(
    "attack", [name for name, (_, reason) in ATTACKS.items() if reason in ("can hold code", "too large")]
)
def test_nothing_is_downloaded_before_all_names_and_sizes_are_checked(
    attack: str, shared_run: Path, hub: FakeHub, tmp_path: Path
) -> None:
    ATTACKS[attack][0](hub.add_repository(REPOSITORY_ID, shared_run))
    with pytest.raises(ValueError, match=r"code|too large"):
        pull_run(REPOSITORY_ID, tmp_path / "pulled")
    assert not [request for request in hub.requests if "/resolve/" in request]


@PULL
def test_an_earlier_folder_survives_a_hostile_update(shared_run: Path, hub: FakeHub, tmp_path: Path) -> None:
    repository = hub.add_repository(REPOSITORY_ID, shared_run)
    pulled_dir = pull_run(REPOSITORY_ID, tmp_path / "pulled")
    before = {path: path.read_bytes() for path in pulled_dir.rglob("*") if path.is_file()}
    forge_tensors(repository)
    with pytest.raises(ValueError, match="header is too large"):
        pull_run(REPOSITORY_ID, pulled_dir)
    assert {path: path.read_bytes() for path in pulled_dir.rglob("*") if path.is_file()} == before


def test_harmless_other_files_are_left_out_and_named(shared_run: Path, hub: FakeHub, tmp_path: Path) -> None:
    repository = hub.add_repository(REPOSITORY_ID, shared_run)
    repository.files.update({"LICENSE": b"MIT", "notes/results.csv": b"1,2"})
    lines: list[str] = []
    pulled_dir = pull_run(REPOSITORY_ID, tmp_path / "pulled", log=lines.append)
    assert "left out, not files of a shared run: LICENSE, notes/results.csv" in lines
    assert not (pulled_dir / "LICENSE").exists()
    assert not (pulled_dir / ".gitattributes").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(shared_run: Path, hub: FakeHub, tmp_path: Path) -> None:
    hub.add_repository(REPOSITORY_ID, shared_run)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError, match="exists"):
        pull_run(REPOSITORY_ID, tmp_path / "link")
    assert not list((tmp_path / "target").iterdir())
