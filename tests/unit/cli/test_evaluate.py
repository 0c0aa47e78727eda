"""The agent of a real, tiny run, played again by the command."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from manyview.cli.main import main
from manyview.config.overrides import apply_overrides
from manyview.envs import View
from manyview.report.metrics_file import read_records
from manyview.report.policy_rollout import PolicyRollout, RunPlayer, list_absent_views
from manyview.training import RunDir, load_preset, run
from manyview.training.video import format_captions
from tests.support.run_dirs import TASK, TINY_RUN, write_run_dir

CAMERAS = ("upright", "lying")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained")
    run(apply_overrides(load_preset("minute", task=TASK, method="drqv2+mem", seed=3), TINY_RUN), RunDir(path))
    return path


def play(run_path: Path, **options: Any) -> PolicyRollout:
    with RunPlayer(run_path) as player:
        return player.play(episodes=1, **options)


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_agent_does_what_it_did_at_the_end_of_its_training(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = [record for record in read_records(trained / "metrics.jsonl") if record["kind"] == "evaluation"][-1]
    found = evaluated(capsys, str(trained), "--episodes", str(len(last["returns"])))
    assert found["returns"] == last["returns"]
    assert found["last_return_in_training"] == last["return"]
    assert (found["task"], found["method"], found["frames"]) == (TASK, "drqv2+mem", 120)


def test_the_words_tell_mean_interval_extremes_and_the_last_return(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluated(capsys, str(trained), "--episodes", "4")
    assert main(["evaluate", str(trained), "--episodes", "4"]) == 0
    words = capsys.readouterr().out
    low, high = found["interval"]
    assert low <= found["mean"] <= high
    assert f"{found['mean']:.1f}, 95 % interval {low:.1f} to {high:.1f}" in words
    assert f"min {min(found['returns']):.1f}, max {max(found['returns']):.1f}, over 4 episodes" in words
    assert f"{found['last_return_in_training']:.1f}, last evaluation" in words
    assert "masked" not in words


def test_only_the_named_cameras_are_present(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for camera in CAMERAS:
        played = play(trained, cameras=[camera], record_video=True)
        assert played.present_views == (camera,)
        assert played.evaluation.recording is not None
        for moment in played.evaluation.recording.steps:
            assert [name for name, picture in moment.images.items() if picture is not None] == [camera]
    alone = [evaluated(capsys, str(trained), "--episodes", "3", "--views", camera) for camera in CAMERAS]
    both = evaluated(capsys, str(trained), "--episodes", "3", "--views", *CAMERAS)
    assert both["returns"] == evaluated(capsys, str(trained), "--episodes", "3")["returns"]
    assert both["returns"] not in [found["returns"] for found in alone]
    assert main(["evaluate", str(trained), "--episodes", "1", "--views", "lying"]) == 0
    assert "lying (masked: upright)" in capsys.readouterr().out


def test_a_negative_seed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path), "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "--seed must be at least 0, got -1\n"


def test_the_seed_chooses_the_starts(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def returns(seed: int) -> Any:
        return evaluated(capsys, str(trained), "--episodes", "3", "--seed", str(seed))["returns"]

    assert returns(3) == returns(3)
    assert returns(3) != returns(4)


def test_a_video_of_the_first_episode_is_written(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = tmp_path / "episode.mp4"
    assert main(["evaluate", str(trained), "--episodes", "1", "--video", str(video)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"written to {video}"
    assert video.read_bytes()[4:8] == b"ftyp"


def test_a_film_ends_with_what_the_last_step_was_paid(trained: Path) -> None:
    evaluation = play(trained, record_video=True).evaluation
    assert evaluation.recording is not None
    moments = evaluation.recording.steps
    assert len(moments) == evaluation.steps[0] + 1
    assert [moment.is_last for moment in moments] == [False] * evaluation.steps[0] + [True]
    assert sum(moment.reward or 0.0 for moment in moments) == pytest.approx(evaluation.returns[0])


def test_what_is_written_on_a_video_is_in_letters_that_its_font_has(trained: Path) -> None:
    film = play(trained, record_video=True).evaluation.recording
    assert film is not None
    shown = format_captions(film, beta=0.05)
    assert all(caption.isascii() and "beta 0.05" in caption for caption in shown)


def test_a_run_of_a_device_that_is_not_here_is_played_on_what_there_is(trained: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(trained, moved)
    config = json.loads((moved / "config.json").read_text())
    config["compute"]["device"] = "cuda:63"
    (moved / "config.json").write_text(json.dumps(config))
    assert play(moved).evaluation.returns == play(trained).evaluation.returns


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--views", "wrist"], "unknown camera 'wrist': expected one of upright, lying"),
        (["--episodes", "0"], "episodes must be at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_refused_in_a_line(
    options: list[str], reason: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(trained), *options]) == 2
    assert capsys.readouterr().err == f"{reason}\n"


def test_a_run_without_a_checkpoint_is_refused_in_a_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    shutil.copytree(trained, results, ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["evaluate", str(results)]) == 2
    assert capsys.readouterr().err == f"{results} holds no checkpoint: expected a run that has saved at least one\n"


def test_a_folder_without_a_run_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{tmp_path} holds no run: ")
    assert error.endswith(f"`manyview runs {tmp_path}` lists the runs below it\n")


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_torn_checkpoint_is_refused_with_its_name(
    name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(trained, torn)
    for file in torn.glob(f"checkpoints/*/{name}"):
        file.write_bytes(b"{")
    assert main(["evaluate", str(torn), "--episodes", "1"]) == 2
    shown = capsys.readouterr().err
    assert f"000000120: {name} is not the file that was written" in shown
    assert len(shown.splitlines()) == 1


def test_settings_of_another_version_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], warp={"speed": 9})
    assert main(["evaluate", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"{path / 'config.json'}: unknown setting warp: expected one of agent, bonus, ")
    assert len(shown.splitlines()) == 1


@pytest.fixture
def foreign(trained: Path, tmp_path: Path) -> Path:
    """A run with a bonus that is not installed."""
    path = tmp_path / "foreign"
    shutil.copytree(trained, path)
    config = json.loads((path / "config.json").read_text())
    config["bonus"] = {"name": "nope", "appetite": 3}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_run_with_a_part_that_is_not_installed_is_refused_by_its_name(
    foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["evaluate", str(foreign)], ["train", TASK, "--out", str(foreign)]):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"{foreign / 'config.json'}: unknown bonus 'nope': expected one of apt, icm, mem, ")
        assert shown.err.endswith("install the package that provides it\n")


def test_a_run_with_a_part_that_is_not_installed_is_listed_and_drawn(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(foreign), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["method"], listed["state"], listed["frames"]) == ("drqv2+mem+nope", "finished", 120)
    assert main(["plot", str(foreign), "--out", str(tmp_path / "curves.png")]) == 0
    assert f"{TASK}, drqv2+mem+nope, 1 seed: " in capsys.readouterr().out


def test_a_derived_view_goes_with_its_camera() -> None:
    views = [View("side", 8, 8), View("back", 8, 8), View("side_foreground", 8, 8, derived_from="side")]
    assert list_absent_views(views, ["side"]) == ("back",)
    assert list_absent_views(views, ["back"]) == ("side", "side_foreground")
    assert list_absent_views(views, []) == ("side", "back", "side_foreground")
    with pytest.raises(ValueError, match="expected side, which keeps both views"):
        list_absent_views(views, ["side_foreground"])


@pytest.mark.simulator
@pytest.mark.parametrize(("camera", "present"), [("side", ("side", "side_foreground")), ("back", ("back",))])
def test_the_background_removed_view_of_a_simulated_camera_is_masked_with_it(
    camera: str, present: tuple[str, ...], walker: Path
) -> None:
    played = play(walker, cameras=[camera], record_video=True)
    assert played.evaluation.recording is not None
    shown = played.evaluation.recording.steps[-1].images
    assert tuple(name for name, picture in shown.items() if picture is not None) == present == played.present_views


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped before it had learned anything: one checkpoint of the begin."""
    path = tmp_path_factory.mktemp("walker")
    few = {**TINY_RUN, "schedule": {"frames": 8, "random_steps": 9, "seed_frames": 9}, "replay": {"capacity": 600}}
    few["evaluation"] = {**TINY_RUN["evaluation"], "episodes": 1}
    few["env"] = {"image_size": 16}
    run(apply_overrides(load_preset("minute", task="dmc/walker_walk", method="drqv2+mem", seed=1), few), RunDir(path))
    return path


def test_a_run_without_its_records_is_played_all_the_same(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    (copy / "metrics.jsonl").unlink()
    assert evaluated(capsys, str(copy), "--episodes", "2")["last_return_in_training"] is None


@pytest.mark.parametrize(
    ("name", "missing", "says"),
    [
        ("a.webm", None, "unknown format of a.webm: expected a file that ends with .mp4 or .gif"),
        ("a.gif", "imageio.v2", 'Install it: pip install "manyview[video]"'),
        ("a.mp4", None, "nowhere holds no run"),
    ],
)
def test_a_video_that_cannot_be_written_is_refused_before_the_run_is_opened(
    name: str, missing: str | None, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)  # as Python itself marks a module that cannot be imported
    assert main(["evaluate", "nowhere", "--video", name]) == 2
    assert says in capsys.readouterr().err
