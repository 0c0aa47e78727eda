"""`manyview config`: settings and parts, printed without building anything."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.config.files import read_config_file
from manyview.config.overrides import to_plain
from manyview.config.presets import list_presets
from manyview.config.resolve import DEFAULT_TASK, resolve_config
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS

TASK = "toy/hidden_goal_continuous"


def show_config(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of `manyview config show`."""
    assert main(["config", "show", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_config_is_that_of_train_with_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method", "sac+re3", "--preset", "cpu", "--seed", "5", "--frames", "70", "--views", "1"]
    options += ["--device", "cpu"]
    output = show_config(capsys, TASK, *options, "--bonus.k=7", "--set", "replay.n_step=2", "--format", "json")
    expected = resolve_config(
        TASK,
        method="sac+re3",
        preset="cpu",
        seed=5,
        frames=70,
        views=["1"],
        device="cpu",
        assignments=["bonus.k=7", "replay.n_step=2"],
    )
    assert json.loads(output) == to_plain(expected)
    assert (expected.bonus.k, expected.replay.n_step, expected.schedule.frames) == (7, 2, 70)


def test_the_task_is_an_argument_or_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_config(capsys, TASK) == show_config(capsys, "--task", TASK) != show_config(capsys)
    assert tomllib.loads(show_config(capsys))["task"] == DEFAULT_TASK


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_printed_config_is_a_valid_config_file(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"config.{suffix}"
    file.write_text(show_config(capsys, TASK, "--method", "sac+pixel+mem", "--seed", "4", "--format", suffix))
    assert show_config(capsys, "--config", str(file), "--format", suffix) == file.read_text()
    output = show_config(
        capsys, "--config", str(file), "--task", "dmc/walker_walk", "--bonus", "none", "--format", "json"
    )
    plain = json.loads(output)
    assert (plain["task"], plain["bonus"], plain["seed"]) == ("dmc/walker_walk", {"name": "none"}, 4)
    assert plain["agent"] == to_plain(read_config_file(file))["agent"]


def test_every_setting_has_its_description_above(capsys: pytest.CaptureFixture[str]) -> None:
    lines = show_config(capsys, "--method", "ppo+pixel+mem").splitlines()
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith(("# ", "name = ")):
            assert lines[number - 1].startswith("# "), line
            assert not lines[number - 1].endswith(" = None"), line
    assert lines[lines.index("# directory = None") - 1].startswith("# Directory for memory-mapped replay files")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay.batchsize", "3"], "unknown setting replay.batchsize: expected one of "),
        (["--replay.batchsize", "3"], "did you mean replay.batch_size?"),
        (["--replya.batch-size", "3"], "did you mean replay? `manyview config show`"),
        (["--set", "batch_size=3"], "did you mean agent.batch_size of ppo or replay.batch_size?"),
        (["--set", "n_stpe=3"], "did you mean replay.n_step?"),
        (["--set", "replay.frames=3"], "did you mean schedule.frames?"),
        (["--agent.gae-lambda", "3"], "did you mean agent.gae_lambda of ppo?"),
        (["--agent.latent-dim", "3"], "did you mean representation.latent_dim of "),
        (["--agent.qqqqqq", "3"], "view_dropout. `manyview config show`"),
        (["--replay.batch-size", "3", "4"], "replay.batch_size must be int, got [3, 4]"),
        (["--replay.batch-size"], "replay.batch_size must be int, got True"),
        (["--env.views", "3.5"], "env.views must be a list or None, got 3.5"),
        (["--preset", "cpuu"], "did you mean cpu?"),
        (["--bonus", "re33"], "unknown bonus 're33'"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["toy/deepsea"], "unknown task 'toy/deepsea'; did you mean toy/deep_sea"),
        (["my_env.make_env"], "did you mean my_env:make_env?"),
        (["--config", "a.toml", "--preset", "cpu"], "--config and --preset exclude each other"),
    ],
)
def test_invalid_options_are_refused_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "3"], "--batch-size has no group; did you mean --agent.batch-size or --replay.batch-size?"),
        (["--preset", "cpu", "--n-step", "3", "--seed", "4"], "--n-step has no group; did you mean --replay.n-step?"),
        (["--n-step=3"], "--n-step has no group; did you mean --replay.n-step?"),
    ],
)
def test_a_flag_without_its_group_gets_a_suggestion(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_request:
        main(["config", "show", *arguments])
    assert exit_request.value.code == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1] == message
    assert error.count("has no group") == 1


def test_flags_and_set_give_the_same_error(capsys: pytest.CaptureFixture[str]) -> None:
    errors = set()
    for arguments in (["--bonus.kk", "3"], ["--bonus.kk=3"], ["--set", "bonus.kk=3"]):
        assert main(["config", "show", *arguments]) == 2
        errors.add(capsys.readouterr().err)
    assert len(errors) == 1


def test_foreign_text_does_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, task = tmp_path / "config.json", 'a\x1b[2J\n[x]\r\x9b31m\u202e\x7f"\\\U0001f916'
    file.write_text(json.dumps({"task": task}))
    for suffix in ("toml", "json"):
        text = show_config(capsys, "--config", str(file), "--format", suffix)
        assert all(line.isprintable() for line in text.split("\n"))
        (tmp_path / f"again.{suffix}").write_text(text)
        assert read_config_file(tmp_path / f"again.{suffix}").task == task


def test_show_imports_no_simulator_and_no_trainer() -> None:
    code = """
import sys
from manyview.cli.main import main
assert main(["config", "show", "dmc/walker_walk"]) == 0
print("# imported:", *(name for name in ("mujoco", "dm_control", "ray", "manyview.training") if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].strip() == "# imported:"


def test_the_list_has_all_presets_and_parts_with_their_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "manyview" / "presets"
    directory.mkdir(parents=True)
    (directory / "robot.toml").write_text('summary = "a robot"')
    (directory / "broken.toml").write_text("[replay]\nspeed = 3")
    assert main(["config", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line[0] != " "] == [
        ["presets"],
        ["agents"],
        ["representations"],
        ["bonuses"],
    ]
    names = [line.split()[0] for line in lines if line[0] == " "]
    registries = (AGENTS, REPRESENTATIONS, BONUSES)
    assert names == [*list_presets(), *(name for registry in registries for name in registry.list_names())]
    (robot_line,) = (line for line in lines if line.startswith("  robot "))
    assert robot_line.endswith(f" a robot [{directory / 'robot.toml'}]")
    assert any("broken" in line and "unknown setting replay.speed" in line for line in lines)
    assert sum(line.endswith(" [manyview]") for line in lines) >= 10
    assert any(line.startswith("  re3 ") and "k-NN distance in a random, frozen embedding" in line for line in lines)
