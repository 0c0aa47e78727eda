"""`manyview hub`: pushes and pulls of runs, with a fake hub on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import manyview
from manyview.cli.main import main
from manyview.deploy.hub import check_repository, pull_run, push_run
from manyview.deploy.shared_run import write_shared_run
from manyview.report.policy_rollout import RunPlayer
from manyview.training import RunDir, run
from tests.support.fake_hub import TOKEN, FakeHub, Repository, format_sha, serve_hub, use_fake_hub
from tests.support.robots import TASK, train_robot
from tests.support.runs import make_short_config

REPOSITORY_NAME = "user/reach"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""huggingface_hub uploads files by a deprecated argument of its own HTTP client."""


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a short finished run."""
    path = tmp_path_factory.mktemp("trained") / "run"
    run(make_short_config("drqv2+mem"), RunDir(path))
    return path


@pytest.fixture(scope="module")
def shared_path(run_path: Path) -> Path:
    """Return the path of a shared run with an earlier checkpoint."""
    return write_shared_run(run_path, run_path.parent / "shared", choice="000000030")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """Serve an empty hub that the library uses."""
    with use_fake_hub(monkeypatch, tmp_path) as hub:
        yield hub


def test_a_pushed_run_is_pulled_and_acts_the_same(run_path: Path, hub: FakeHub, tmp_path: Path) -> None:
    address = push_run(run_path, REPOSITORY_NAME)
    assert address == f"{hub.endpoint}/{REPOSITORY_NAME}"
    folder = pull_run(REPOSITORY_NAME, tmp_path / "pulled")
    pushed_files = {
        name: content for name, content in hub.repositories[REPOSITORY_NAME].files.items() if name != ".gitattributes"
    }
    pulled_files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    assert pulled_files == pushed_files
    policies = [manyview.load(path) for path in (run_path, folder)]
    images = {view.name: np.full(view.shape, 7, np.uint8) for view in policies[0].spec.views}
    first, second = (policy.act(images) for policy in policies)
    np.testing.assert_array_equal(first, second)
    assert hub.repositories[REPOSITORY_NAME].messages == ["drqv2+mem on toy/hidden_goal_continuous, seed 1"]
    card = hub.repositories[REPOSITORY_NAME].files["README.md"].decode()
    assert f"manyview hub pull {REPOSITORY_NAME}\n" in card
    assert f'manyview.load("runs/hub/{REPOSITORY_NAME}")' in card


def test_a_second_push_replaces_the_checkpoint(run_path: Path, shared_path: Path, hub: FakeHub, tmp_path: Path) -> None:
    hub.add_repository(REPOSITORY_NAME, shared_path).files["LICENSE"] = b"mine"
    push_run(run_path, REPOSITORY_NAME)
    names = hub.repositories[REPOSITORY_NAME].files.keys()
    assert {name.split("/")[1] for name in names if name.startswith("checkpoints/")} == {"000000060"}
    assert "LICENSE" in names
    pull_run(REPOSITORY_NAME, tmp_path / "pulled")


def test_earlier_revisions_can_be_pulled(run_path: Path, shared_path: Path, hub: FakeHub, tmp_path: Path) -> None:
    repository = hub.add_repository(REPOSITORY_NAME, shared_path)
    repository.tags["v1"] = len(repository.commits) - 1
    push_run(run_path, REPOSITORY_NAME)
    for revision, expected in ((None, "000000060"), ("v1", "000000030"), (format_sha(1), "000000030")):
        folder = pull_run(REPOSITORY_NAME, tmp_path / "pulled", revision=revision)
        assert [path.name for path in (folder / "checkpoints").iterdir()] == [expected]
    with pytest.raises(OSError, match="no such revision"):
        pull_run(REPOSITORY_NAME, tmp_path / "pulled", revision="v2")


def test_files_come_from_the_listed_commit(
    shared_path: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repository(REPOSITORY_NAME, shared_path)
    find_commit = Repository.find_commit

    def find_commit_and_push(self: Repository, revision: str) -> int | None:
        index = find_commit(self, revision)
        if len(self.commits) == 2:  # another commit is pushed right after the branch was resolved
            self.commits.append({})
        return index

    monkeypatch.setattr(Repository, "find_commit", find_commit_and_push)
    assert manyview.load(pull_run(REPOSITORY_NAME, tmp_path / "pulled")).spec.views


def test_a_private_repository_is_private(run_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    push_run(run_path, REPOSITORY_NAME, private=True)
    assert hub.repositories[REPOSITORY_NAME].private
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(OSError, match=r"user/reach is not on the hub, or not for you \(401\)"):
        pull_run(REPOSITORY_NAME)


def test_private_is_refused_for_a_public_repository(run_path: Path, hub: FakeHub) -> None:
    hub.repositories[REPOSITORY_NAME] = Repository()
    with pytest.raises(ValueError, match="is public: expected a private repository"):
        push_run(run_path, REPOSITORY_NAME, private=True)
    assert len(hub.repositories[REPOSITORY_NAME].commits) == 1


def test_a_wrong_token_uploads_nothing(run_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(OSError, match="user/reach"):
        push_run(run_path, REPOSITORY_NAME)
    assert not hub.repositories


def test_a_hub_that_cannot_be_reached_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with use_fake_hub(monkeypatch, tmp_path):
        pass  # the server of this endpoint has stopped
    monkeypatch.chdir(tmp_path)
    assert main(["hub", "pull", REPOSITORY_NAME]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list((tmp_path / "runs").rglob("*.json"))


def test_an_existing_folder_of_other_files_is_not_changed(shared_path: Path, hub: FakeHub, tmp_path: Path) -> None:
    hub.add_repository(REPOSITORY_NAME, shared_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("gold")
    with pytest.raises(FileExistsError, match="mine exists"):
        pull_run(REPOSITORY_NAME, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.usefixtures("hub")
def test_an_own_task_needs_its_confirmation_after_a_pull(tmp_path: Path) -> None:
    push_run(train_robot(tmp_path / "robot"), "user/robot")
    folder = pull_run("user/robot", tmp_path / "pulled")
    with pytest.raises(ValueError, match="--own-task"):
        RunPlayer(folder)
    with RunPlayer(folder, trusted_task=TASK) as player:
        assert player.cameras == ("front", "wrist")


def test_a_run_starts_from_a_pulled_folder(shared_path: Path, hub: FakeHub, tmp_path: Path) -> None:
    hub.add_repository(REPOSITORY_NAME, shared_path)
    folder = pull_run(REPOSITORY_NAME, tmp_path / "pulled")
    config = make_short_config("drqv2+mem", seed=2, schedule={"initial_run": str(folder), "frames": 30})
    assert run(config, RunDir(tmp_path / "next"))


@pytest.mark.parametrize(
    "name",
    ["reach", "user/", "/reach", "a/b/c", "../reach", "user/..", "user/a..b", "user/.git", "u ser/x", "user/x\n"],
)
def test_names_that_are_no_repository_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected user/name"):
        check_repository(name)


@pytest.mark.parametrize(
    "arguments", [["push", REPOSITORY_NAME], ["pull"], ["pull", "run", REPOSITORY_NAME], ["push", "a", "b/c", "d"]]
)
def test_wrong_numbers_of_arguments_are_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hub", *arguments]) == 2
    assert "USER/NAME" in capsys.readouterr().err


def test_a_missing_package_names_its_extra(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["hub", "push", str(run_path), REPOSITORY_NAME]) == 2
    assert 'pip install "manyview[hub]"' in capsys.readouterr().err


def test_the_commands_use_the_endpoint_of_the_environment(run_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with serve_hub() as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
        outputs = []
        for arguments in (["push", str(run_path), REPOSITORY_NAME, "--private"], ["pull", REPOSITORY_NAME]):
            command = [sys.executable, "-m", "manyview", "hub", *arguments]
            result = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
            )
            assert result.returncode == 0, result.stderr
            outputs.append(result.stdout)
        assert outputs == [f"pushed to {hub.endpoint}/{REPOSITORY_NAME}\n", f"written to runs/hub/{REPOSITORY_NAME}\n"]
        assert hub.repositories[REPOSITORY_NAME].private
    manifest = json.loads((tmp_path / "runs" / "hub" / REPOSITORY_NAME / "manifest.json").read_text())
    assert manifest["shared"]["checkpoint"] == "000000060"
