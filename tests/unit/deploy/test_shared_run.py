"""`manyview card`: the files of a shared run, its privacy and its model card."""

import json
import re
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import manyview
from manyview.cli.main import main
from manyview.config.overrides import apply_overrides, to_plain
from manyview.config.resolve import resolve_config
from manyview.deploy import model_card
from manyview.deploy.model_card import CardFigures
from manyview.deploy.shared_files import check_complete, is_allowed
from manyview.deploy.shared_run import write_shared_run
from manyview.report.policy_rollout import RunPlayer
from manyview.report.runs import summarize_run
from manyview.report.statistics import bootstrap_interval
from manyview.report.train_command import build_train_command, strip_paths
from manyview.training import RunConfig, RunDir, load_preset, make_config, run
from manyview.utils.atomic_io import remove
from tests.support.robots import TASK, train_robot
from tests.support.runs import make_short_config, make_short_rollout_config


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a short finished run."""
    path = tmp_path_factory.mktemp("trained") / "run"
    run(make_short_config("drqv2+mem", replay={"directory": str(path.parent / "private replay")}), RunDir(path))
    return path


@pytest.fixture
def shared_path(run_path: Path, tmp_path: Path) -> Path:
    """Return the path of the shared run."""
    return write_shared_run(run_path, tmp_path / "shared")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by relative path."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def read_front_matter(folder: Path) -> dict[str, Any]:
    """Return the front matter of the model card."""
    _, front_matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in front_matter.splitlines())}


def read_card_table(folder: Path) -> dict[str, str]:
    """Return the two-column rows of the model card."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (folder / "README.md").read_text(), flags=re.M)
    return dict(rows)


def test_the_folder_has_the_files_of_a_shared_run_only(shared_path: Path) -> None:
    files = read_files(shared_path)
    assert all(is_allowed(name, len(content)) for name, content in files.items())
    check_complete(set(files))
    assert {"README.md", "curve.png", "checkpoints/000000060/state.safetensors"} <= files.keys()


def test_the_shared_policy_acts_and_plays_as_the_run(run_path: Path, shared_path: Path) -> None:
    rng, policies = np.random.default_rng(0), [manyview.load(path) for path in (run_path, shared_path)]
    for _ in range(5):
        images = {view.name: rng.integers(0, 256, view.shape, np.uint8) for view in policies[0].spec.views}
        first, second = (policy.act(images) for policy in policies)
        np.testing.assert_array_equal(first, second)
    returns = []
    for path in (run_path, shared_path):
        with RunPlayer(path) as player:
            returns.append(player.play(episodes=3).evaluation.returns)
    assert returns[0] == returns[1]


def test_a_run_starts_from_the_shared_weights(shared_path: Path, tmp_path: Path) -> None:
    config = make_short_config(
        "drqv2+mem", seed=2, schedule={"initial_run": str(shared_path), "frames": 30, "seed_frames": 60}
    )
    run(config, RunDir(tmp_path / "next"))
    agents = []
    for path in (shared_path, tmp_path / "next"):
        with RunPlayer(path) as player:
            agents.append(dict(player.agent.named_parameters()))
    assert agents[0].keys() == agents[1].keys()
    assert all(torch.equal(weights, agents[1][name]) for name, weights in agents[0].items())


def test_nothing_private_is_shared(run_path: Path, shared_path: Path) -> None:
    texts = [content for name, content in read_files(shared_path).items() if name.endswith((".json", ".jsonl", ".md"))]
    manifest = json.loads((run_path / "manifest.json").read_bytes())
    assert manifest["host"] == socket.gethostname()
    private_words = [socket.gethostname(), str(run_path.parent), "private replay", '"pid"', '"host"']
    assert not [word for word in private_words if any(word.encode() in text for text in texts)]


def test_texts_of_records_are_not_shared(run_path: Path, tmp_path: Path) -> None:
    metrics = run_path / "metrics.jsonl"
    metrics_before = metrics.read_text()
    try:
        record = {"kind": "evaluation", "frames": 61, "return": 1.0, "text": "/home/someone", "returns": [1.0, "x"]}
        metrics.write_text(metrics_before + json.dumps(record) + "\n")
        shared_path = write_shared_run(run_path, tmp_path / "shared")
    finally:
        metrics.write_text(metrics_before)
    assert '"frames": 61, "return": 1.0}' in (shared_path / "metrics.jsonl").read_text()


def test_the_card_has_the_figures_of_the_last_evaluation(run_path: Path, shared_path: Path) -> None:
    records = [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    last_record = [record for record in records if record["kind"] == "evaluation"][-1]
    low, high = bootstrap_interval(last_record["returns"])
    expected = f"{last_record['return']:.4g}, 95 % interval {low:.4g} to {high:.4g}, 2 episodes"
    table = read_card_table(shared_path)
    assert table["return"] == expected
    assert table["evaluated after"] == "60 simulator frames"
    assert table["seed"] == "1 (one run)"
    assert table["views"] == "`column`, `row`"
    assert table["`schedule.frames`"] == "`3000` | `60`"
    front_matter = read_front_matter(shared_path)
    assert front_matter["library_name"] == "manyview"
    (result,) = front_matter["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == pytest.approx(last_record["return"], abs=1e-4)
    assert result["dataset"]["name"] == "toy/hidden_goal_continuous"


def test_the_hub_reads_the_card(shared_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(shared_path / "README.md").data
    assert data.library_name == "manyview"
    assert data.pipeline_tag == "reinforcement-learning"
    (result,) = data.eval_results
    assert (result.metric_type, result.dataset_name) == ("mean_reward", "toy/hidden_goal_continuous")


def test_a_run_without_a_bonus_has_no_tag_for_one() -> None:
    config = load_preset("cpu", task="dmc/hopper_hop", method="sac+none", seed=1)
    front_matter = model_card._format_front_matter(cast(CardFigures, SimpleNamespace(config=config, evaluation=None)))
    assert '"robotics", "sac", "dmc/hopper_hop"]' in front_matter


def test_the_best_checkpoint_has_the_figures_of_its_own_evaluation(run_path: Path, tmp_path: Path) -> None:
    shared_path = write_shared_run(run_path, tmp_path / "shared", choice="000000030")
    assert read_card_table(shared_path)["evaluated after"] == "30 simulator frames"
    assert [path.name for path in (shared_path / "checkpoints").iterdir()] == ["000000030"]
    best_path = write_shared_run(run_path, tmp_path / "best", choice="best")
    assert "biases its return upwards" in (best_path / "README.md").read_text()
    assert "biases" not in (shared_path / "README.md").read_text()


def test_the_lines_of_the_card_load_the_policy(shared_path: Path) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", (shared_path / "README.md").read_text(), flags=re.S)
    views = manyview.load(shared_path).spec.views
    namespace: dict[str, Any] = {"observation": {view.name: np.zeros(view.shape, np.uint8) for view in views}}
    exec(lines.replace("path/to/this/folder", str(shared_path)), namespace)
    assert namespace["action"].shape == (2,)
    assert len(lines.splitlines()) == 3


CONFIGS: dict[str, RunConfig] = {
    "short": make_short_config(),
    "rollouts": make_short_rollout_config("ppo+mem"),
    "bonus alone": make_short_config("sac+pixel+mem", bonus={"encoder": {"latent_dim": 3}}),
    "two presets": load_preset("cpu,minute", task="toy/hidden_goal", method="ppo+none", seed=3),
    "quoted": apply_overrides(make_short_config(), {"env": {"views": ["row", "a'b c"]}, "compute": {"threads": None}}),
    "no preset": make_config("toy/hidden_goal", method="ppo+re3"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_command_resolves_to_the_config(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(to_plain(config)))
    _, subcommand, task, *options = shlex.split(
        build_train_command(config, config_file=str(tmp_path / "config.json")).text
    )
    arguments: dict[str, list[str]] = {}
    for word in options:
        if word.startswith("--"):
            arguments[word] = []
        else:
            arguments[list(arguments)[-1]].append(word)
    file = arguments.get("--config")
    assert (file is None) == (name != "no preset")
    resolved_config = resolve_config(
        task,
        method=arguments.get("--method", [None])[0],
        preset=arguments.get("--preset", [None])[0],
        seed=int(arguments["--seed"][0]) if "--seed" in arguments else None,
        file=None if file is None else Path(file[0]),
        assignments=arguments.get("--set", []),
    )
    assert subcommand == "train"
    assert resolved_config == config


def test_paths_of_the_machine_are_stripped_from_the_config() -> None:
    config = make_short_config(schedule={"initial_run": "/home/a/runs/first"}, replay={"directory": "/home/a/replay"})
    stripped_config = strip_paths(replace(config, preset="/home/a/own.toml,minute"))
    assert "/home" not in json.dumps(to_plain(stripped_config))
    assert (stripped_config.schedule.initial_run, stripped_config.preset) == ("first", "own,minute")
    assert build_train_command(stripped_config, config_file="config.json").text.endswith("--config config.json")


def test_a_shared_run_is_not_trained_on(shared_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["resume", str(shared_path)], ["extend", str(shared_path), "--frames", "500"]):
        assert main(command) == 2
        assert f"--from {shared_path}" in capsys.readouterr().err


def test_a_shared_run_is_listed_as_finished(shared_path: Path) -> None:
    summary = summarize_run(shared_path)
    assert (summary.state, summary.frames, summary.method) == ("finished", 60, "drqv2+mem")


def test_the_command_replaces_its_folder_and_nothing_else(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["card", str(run_path)]) == main(["card", str(run_path)]) == 0
        assert f"written to {run_path / 'card'}" in capsys.readouterr().out
        remove(run_path / "card")
        (run_path / "card").mkdir()
        (run_path / "card" / "mine").write_text("gold")
        assert main(["card", str(run_path)]) == 2
        assert "card exists: expected a new folder or an earlier shared run" in capsys.readouterr().err
        assert (run_path / "card" / "mine").read_text() == "gold"
    finally:
        remove(run_path / "card")
    assert not list(run_path.glob(".*"))


def test_a_link_is_not_followed(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError, match="exists"):
        write_shared_run(run_path, tmp_path / "link")


def test_missing_parts_are_left_out_with_a_reason(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("matplotlib", "manyview.deploy.export"):
        monkeypatch.setitem(sys.modules, module, None)
    lines: list[str] = []
    shared_path = write_shared_run(run_path, tmp_path / "shared", log=lines.append)
    assert [line.split(":")[0] for line in lines] == ["no curve.png", "no replay.mp4", "no exported policy"]
    assert not (shared_path / "curve.png").exists()
    assert "curve.png" not in (shared_path / "README.md").read_text()


def test_the_last_video_and_the_exported_policy_are_shared(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter: Any = ModuleType("manyview.deploy.export")

    def export_policy(run: Path, folder: Path, *, own_task: str | None) -> None:
        assert manyview.load(run).spec.views
        assert own_task is None
        folder.mkdir()
        for name in ("policy.json", "policy.onnx"):
            (folder / name).write_text("exported")

    exporter.export_policy = export_policy
    monkeypatch.setitem(sys.modules, "manyview.deploy.export", exporter)
    videos = run_path / "videos"
    try:
        videos.mkdir()
        for name in ("000000030.mp4", "000000060.mp4", "zzz.mp4"):
            (videos / name).write_text(name)
        folder = write_shared_run(run_path, tmp_path / "shared")
    finally:
        remove(videos)
    assert (folder / "replay.mp4").read_text() == "000000060.mp4"
    assert (folder / "export" / "policy.onnx").read_text() == "exported"
    reshared_path = write_shared_run(folder, tmp_path / "again")
    assert (reshared_path / "replay.mp4").read_text() == "000000060.mp4"


def test_a_run_on_own_code_is_shared_without_executing_it(tmp_path: Path) -> None:
    robot_path = train_robot(tmp_path / "robot")
    shared_path = write_shared_run(robot_path, tmp_path / "shared")
    assert manyview.load(shared_path).spec.views
    assert f"\nmanyview evaluate path/to/this/folder --own-task {TASK}\n" in (shared_path / "README.md").read_text()
    with pytest.raises(ValueError, match="--own-task"):
        RunPlayer(shared_path)
    with RunPlayer(shared_path, trusted_task=TASK) as player:
        assert player.cameras == ("front", "wrist")


def test_a_directory_without_a_run_or_checkpoint_is_an_error(
    run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["card", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["card", str(run_path), "--checkpoint", "000000031"]) == 2
    assert "expected last, best or one of" in capsys.readouterr().err
