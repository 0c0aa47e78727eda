"""The list of tasks, on described suites and on the real ones."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from manyview.cli.tasks import VIEWS, describe_tasks, format_task, print_tables
from manyview.envs import list_tasks
from manyview.envs.registration import SUITES, load_suite
from manyview.envs.suite import Suite, Task, TaskSettings

SIMULATORS = ("torch", "dm_control", "mujoco", "envpool", "metaworld", "gymnasium_robotics")


def never_made(task: Task, settings: TaskSettings) -> Any:
    raise AssertionError(f"listing made {task.id} with {settings}")


def described(*settings: TaskSettings, packages: tuple[str, ...] = ()) -> Suite:
    """A suite of as many tasks as settings."""
    named = {f"lab/task_{number}": each for number, each in enumerate(settings)}
    return Suite(
        name="lab",
        title="A laboratory",
        tasks={name: Task(id=name, cameras=("top", "left", "right"), settings=each) for name, each in named.items()},
        make=never_made,
        packages=packages,
        install='pip install "a package with a name that is long" "and another one, so that the line is too long"',
    )


TWO_VIEWS = TaskSettings(views=("top", "left"), image_size=84, frame_stack=3, action_repeat=2)


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "manyview", "tasks", *args]
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**plain, **environment})


def test_every_task_has_a_line_that_begins_with_its_id() -> None:
    shown = run()
    assert shown.returncode == 0
    begins = [line.split()[0] for line in shown.stdout.splitlines() if line.strip()]
    assert [name for name in begins if name in list_tasks()] == list(list_tasks())


def test_the_list_is_plain_and_fits_80_columns_when_piped() -> None:
    lines = run(COLUMNS="80").stdout.splitlines()
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", SUITES)
def test_one_suite_can_be_asked_for(name: str) -> None:
    listed = [task["id"] for task in json.loads(run("--suite", name, "--json").stdout)]
    assert listed == [task.id for task in load_suite(name).tasks.values()]


def test_an_unknown_suite_is_answered_with_those_there_are() -> None:
    shown = run("--suite", "atari")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == f"unknown suite 'atari': expected one of {', '.join(SUITES)}\n"


def test_the_json_has_every_task_with_its_settings() -> None:
    listed = json.loads(run("--json").stdout)
    assert [task["id"] for task in listed] == list(list_tasks())
    for task, known in zip(listed, list_tasks().values(), strict=True):
        settings = {**task["settings"], **{name: tuple(task["settings"][name]) for name in ("views", "state")}}
        assert TaskSettings(**settings) == known.settings
        assert (tuple(task["cameras"]), task["in_paper"]) == (known.cameras, known.in_paper)
        assert tuple(task["state"]) == known.state
        assert task["installed"] is load_suite(task["suite"]).is_installed


def test_listing_imports_no_simulator_and_no_torch() -> None:
    code = f"""
import sys
from manyview.cli.main import main
main(["tasks"])
print("imported:", *(name for name in {SIMULATORS!r} if name in sys.modules))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.attack("a closed or full stdout or stderr, or a reader that leaves, never ends in a traceback")
@pytest.mark.quality("X5")
def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    command = f"{sys.executable} -m manyview tasks --json | head -n 1"
    shown = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert (shown.stdout, shown.stderr) == ("[\n", "")


def test_what_all_tasks_share_is_said_once_above_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lab = described(TWO_VIEWS, replace(TWO_VIEWS, action_repeat=4))
    print_tables([lab])
    title, shared, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "lab: A laboratory (installed)"
    assert shared == "image size: 84; frame stack: 3; views (further cameras): top, left (right)"
    assert head.split() == ["task", "paper", "action", "repeat"]
    assert [row.split()[2] for row in rows] == ["2", "4"]


def test_a_setting_that_only_some_tasks_have_is_blank_for_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([described(TWO_VIEWS, replace(TWO_VIEWS, action_repeat=None))])
    assert "None" not in capsys.readouterr().out


def test_cameras_beyond_the_views_stand_in_brackets() -> None:
    some, every = described(TWO_VIEWS, replace(TWO_VIEWS, views=("top", "left", "right"))).tasks.values()
    assert format_task(some)[VIEWS] == "top, left (right)"
    assert format_task(every)[VIEWS] == "top, left, right"


def test_a_suite_that_is_not_installed_names_the_command_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lab = described(TWO_VIEWS, packages=("a_package_that_nobody_has",))
    print_tables([lab])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["lab: A laboratory (not installed)", f"install: {lab.install}"]
    assert describe_tasks(lab)[0]["install"] == lab.install


def test_a_suite_that_is_installed_names_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([described(TWO_VIEWS, packages=("json",))])
    assert "install: " not in capsys.readouterr().out
