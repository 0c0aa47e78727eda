"""`manyview evaluate` on the agent of a tiny run."""

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
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a finished run of 120 frames."""
    path = tmp_path_factory.mktemp("trained")
    run(apply_overrides(load_preset("minute", task=TASK, method="drqv2+mem", seed=3), TINY_RUN), RunDir(path))
    return path


def play_episode(run_path: Path, **options: Any) -> PolicyRollout:
    """Play one episode of a run."""
    with RunPlayer(run_path) as player:
        return player.play(episodes=1, **options)


def evaluate_to_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON output of `manyview evaluate`."""
    assert main(["evaluate", *arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_returns_are_those_of_the_last_evaluation_in_training(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last_record = [record for record in read_records(run_path / "metrics.jsonl") if record["kind"] == "evaluation"][-1]
    result = evaluate_to_json(capsys, str(run_path), "--episodes", str(len(last_record["returns"])))
    assert result["returns"] == last_record["returns"]
    assert result["last_return_in_training"] == last_record["return"]
    assert (result["task"], result["method"], result["frames"]) == (TASK, "drqv2+mem", 120)


def test_the_text_has_mean_interval_extremes_and_the_last_return(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate_to_json(capsys, str(run_path), "--episodes", "4")
    assert main(["evaluate", str(run_path), "--episodes", "4"]) == 0
    text = capsys.readouterr().out
    low, high = result["interval"]
    assert low <= result["mean"] <= high
    assert f"{result['mean']:.1f}, 95 % interval {low:.1f} to {high:.1f}" in text
    assert f"min {min(result['returns']):.1f}, max {max(result['returns']):.1f}, over 4 episodes" in text
    assert f"{result['last_return_in_training']:.1f}, last evaluation" in text
    assert "masked" not in text


def test_only_the_named_cameras_are_present(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for camera in CAMERAS:
        rollout = play_episode(run_path, cameras=[camera], record_video=True)
        assert rollout.present_views == (camera,)
        assert rollout.evaluation.recording is not None
        for step in rollout.evaluation.recording.steps:
            assert [name for name, image in step.images.items() if image is not None] == [camera]
    single_camera_results = [
        evaluate_to_json(capsys, str(run_path), "--episodes", "3", "--views", camera) for camera in CAMERAS
    ]
    two_camera_result = evaluate_to_json(capsys, str(run_path), "--episodes", "3", "--views", *CAMERAS)
    assert two_camera_result["returns"] == evaluate_to_json(capsys, str(run_path), "--episodes", "3")["returns"]
    assert two_camera_result["returns"] not in [result["returns"] for result in single_camera_results]
    assert main(["evaluate", str(run_path), "--episodes", "1", "--views", "lying"]) == 0
    assert "lying (masked: upright)" in capsys.readouterr().out


def test_a_negative_seed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path), "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "--seed must be at least 0, got -1\n"


def test_the_seed_determines_the_initial_states(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def get_returns(seed: int) -> Any:
        return evaluate_to_json(capsys, str(run_path), "--episodes", "3", "--seed", str(seed))["returns"]

    assert get_returns(3) == get_returns(3)
    assert get_returns(3) != get_returns(4)


def test_a_video_of_the_first_episode_is_written(
    run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = tmp_path / "episode.mp4"
    assert main(["evaluate", str(run_path), "--episodes", "1", "--video", str(video)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"written to {video}"
    assert video.read_bytes()[4:8] == b"ftyp"


def test_a_recording_ends_with_the_reward_of_the_last_step(run_path: Path) -> None:
    evaluation = play_episode(run_path, record_video=True).evaluation
    assert evaluation.recording is not None
    steps = evaluation.recording.steps
    assert len(steps) == evaluation.steps[0] + 1
    assert [step.is_last for step in steps] == [False] * evaluation.steps[0] + [True]
    assert sum(step.reward or 0.0 for step in steps) == pytest.approx(evaluation.returns[0])


def test_video_captions_are_ascii(run_path: Path) -> None:
    recording = play_episode(run_path, record_video=True).evaluation.recording
    assert recording is not None
    captions = format_captions(recording, beta=0.05)
    assert all(caption.isascii() and "beta 0.05" in caption for caption in captions)


def test_a_run_of_an_absent_device_is_played_on_an_available_one(run_path: Path, tmp_path: Path) -> None:
    run_copy = tmp_path / "moved"
    shutil.copytree(run_path, run_copy)
    config = json.loads((run_copy / "config.json").read_text())
    config["compute"]["device"] = "cuda:63"
    (run_copy / "config.json").write_text(json.dumps(config))
    assert play_episode(run_copy).evaluation.returns == play_episode(run_path).evaluation.returns


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--views", "wrist"], "unknown camera 'wrist': expected one of upright, lying"),
        (["--episodes", "0"], "episodes must be at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_refused_in_a_line(
    options: list[str], reason: str, run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run_path), *options]) == 2
    assert capsys.readouterr().err == f"{reason}\n"


def test_a_run_without_a_checkpoint_is_refused_in_a_line(
    run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_copy = tmp_path / "results"
    shutil.copytree(run_path, run_copy, ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["evaluate", str(run_copy)]) == 2
    assert capsys.readouterr().err == f"{run_copy} holds no checkpoint: expected a run that has saved at least one\n"


def test_a_folder_without_a_run_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{tmp_path} holds no run: ")
    assert error.endswith(f"`manyview runs {tmp_path}` lists the runs below it\n")


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_damaged_checkpoint_is_refused_with_its_name(
    name: str, run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_copy = tmp_path / "torn"
    shutil.copytree(run_path, run_copy)
    for file in run_copy.glob(f"checkpoints/*/{name}"):
        file.write_bytes(b"{")
    assert main(["evaluate", str(run_copy), "--episodes", "1"]) == 2
    error = capsys.readouterr().err
    assert f"000000120: {name} is not the file that was written" in error
    assert len(error.splitlines()) == 1


def test_settings_of_another_version_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], warp={"speed": 9})
    assert main(["evaluate", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{path / 'config.json'}: unknown setting warp: expected one of agent, bonus, ")
    assert len(error.splitlines()) == 1


@pytest.fixture
def run_with_unknown_bonus(run_path: Path, tmp_path: Path) -> Path:
    """Return the path of a run whose bonus is not installed."""
    path = tmp_path / "foreign"
    shutil.copytree(run_path, path)
    config = json.loads((path / "config.json").read_text())
    config["bonus"] = {"name": "nope", "appetite": 3}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_run_with_a_part_that_is_not_installed_is_refused_by_its_name(
    run_with_unknown_bonus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["evaluate", str(run_with_unknown_bonus)], ["train", TASK, "--out", str(run_with_unknown_bonus)]):
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(
            f"{run_with_unknown_bonus / 'config.json'}: unknown bonus 'nope': expected one of apt, icm, mem, "
        )
        assert captured.err.endswith("install the package that provides it\n")


def test_a_run_with_a_part_that_is_not_installed_is_listed_and_plotted(
    run_with_unknown_bonus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(run_with_unknown_bonus), "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert (summary["method"], summary["state"], summary["frames"]) == ("drqv2+mem+nope", "finished", 120)
    assert main(["plot", str(run_with_unknown_bonus), "--out", str(tmp_path / "curves.png")]) == 0
    assert f"{TASK}, drqv2+mem+nope, 1 seed: " in capsys.readouterr().out


def test_a_derived_view_is_absent_with_its_camera() -> None:
    views = [View("side", 8, 8), View("back", 8, 8), View("side_foreground", 8, 8, derived_from="side")]
    assert list_absent_views(views, ["side"]) == ("back",)
    assert list_absent_views(views, ["back"]) == ("side", "side_foreground")
    assert list_absent_views(views, []) == ("side", "back", "side_foreground")
    with pytest.raises(ValueError, match="expected side, which keeps both views"):
        list_absent_views(views, ["side_foreground"])


@pytest.mark.simulator
@pytest.mark.parametrize(("camera", "expected_views"), [("side", ("side", "side_foreground")), ("back", ("back",))])
def test_the_background_removed_view_of_a_simulated_camera_is_masked_with_it(
    camera: str, expected_views: tuple[str, ...], walker_run_path: Path
) -> None:
    rollout = play_episode(walker_run_path, cameras=[camera], record_video=True)
    assert rollout.evaluation.recording is not None
    images = rollout.evaluation.recording.steps[-1].images
    assert tuple(name for name, image in images.items() if image is not None) == expected_views == rollout.present_views


@pytest.fixture(scope="module")
def walker_run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a run on a simulated task that ends before its first update."""
    path = tmp_path_factory.mktemp("walker")
    settings = {**TINY_RUN, "schedule": {"frames": 8, "random_steps": 9, "seed_frames": 9}, "replay": {"capacity": 600}}
    settings["evaluation"] = {**TINY_RUN["evaluation"], "episodes": 1}
    settings["env"] = {"image_size": 16}
    run(
        apply_overrides(load_preset("minute", task="dmc/walker_walk", method="drqv2+mem", seed=1), settings),
        RunDir(path),
    )
    return path


def test_a_run_without_metrics_is_evaluated(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_copy = tmp_path / "run"
    shutil.copytree(run_path, run_copy)
    (run_copy / "metrics.jsonl").unlink()
    assert evaluate_to_json(capsys, str(run_copy), "--episodes", "2")["last_return_in_training"] is None


@pytest.mark.parametrize(
    ("name", "missing_module", "message"),
    [
        ("a.webm", None, "unknown format of a.webm: expected a file that ends with .mp4 or .gif"),
        ("a.gif", "imageio.v2", 'Install it: pip install "manyview[video]"'),
        ("a.mp4", None, "nowhere holds no run"),
    ],
)
def test_a_video_that_cannot_be_written_is_refused_before_the_run_is_opened(
    name: str,
    missing_module: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if missing_module is not None:
        # None marks a module that cannot be imported.
        monkeypatch.setitem(sys.modules, missing_module, None)
    assert main(["evaluate", "nowhere", "--video", name]) == 2
    assert message in capsys.readouterr().err
