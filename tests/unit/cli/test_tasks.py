"""`manyview tasks`: the list of tasks, for suites of the test and for the real ones."""

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

HEAVY_MODULES = ("torch", "dm_control", "mujoco", "envpool", "metaworld", "gymnasium_robotics")


def fail_to_make(task: Task, settings: TaskSettings) -> Any:
    """Fail, since listing tasks must not make one."""
    raise AssertionError(f"listing made {task.id} with {settings}")


def make_suite(*settings: TaskSettings, packages: tuple[str, ...] = ()) -> Suite:
    """Return a suite with one task for each of the settings."""
    settings_by_id = {f"lab/task_{number}": task_settings for number, task_settings in enumerate(settings)}
    return Suite(
        name="lab",
        title="A laboratory",
        tasks={
            name: Task(id=name, cameras=("top", "left", "right"), settings=task_settings)
            for name, task_settings in settings_by_id.items()
        },
        make=fail_to_make,
        packages=packages,
        install='pip install "a package with a name that is long" "and another one, so that the line is too long"',
    )


TWO_VIEWS = TaskSettings(views=("top", "left"), image_size=84, frame_stack=3, action_repeat=2)


def run_tasks(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `manyview tasks` in a subprocess with piped output."""
    command = [sys.executable, "-m", "manyview", "tasks", *args]
    base_environment = {
        name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")
    }
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**base_environment, **environment})


def test_every_task_has_a_line_that_starts_with_its_id() -> None:
    result = run_tasks()
    assert result.returncode == 0
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert [word for word in first_words if word in list_tasks()] == list(list_tasks())


def test_the_list_is_plain_and_fits_80_columns_when_piped() -> None:
    lines = run_tasks(COLUMNS="80").stdout.splitlines()
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", SUITES)
def test_one_suite_can_be_selected(name: str) -> None:
    task_ids = [task["id"] for task in json.loads(run_tasks("--suite", name, "--json").stdout)]
    assert task_ids == [task.id for task in load_suite(name).tasks.values()]


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    result = run_tasks("--suite", "atari")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"unknown suite 'atari': expected one of {', '.join(SUITES)}\n"


def test_the_json_has_every_task_with_its_settings() -> None:
    tasks = json.loads(run_tasks("--json").stdout)
    assert [task["id"] for task in tasks] == list(list_tasks())
    for task, registered_task in zip(tasks, list_tasks().values(), strict=True):
        settings = {**task["settings"], **{name: tuple(task["settings"][name]) for name in ("views", "state")}}
        assert TaskSettings(**settings) == registered_task.settings
        assert (tuple(task["cameras"]), task["in_paper"]) == (registered_task.cameras, registered_task.in_paper)
        assert tuple(task["state"]) == registered_task.state
        assert task["installed"] is load_suite(task["suite"]).is_installed


def test_listing_imports_no_simulator_and_no_torch() -> None:
    code = f"""
import sys
from manyview.cli.main import main
main(["tasks"])
print("imported:", *(name for name in {HEAVY_MODULES!r} if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.attack("a closed or full stdout or stderr, or a reader that leaves, never ends in a traceback")
@pytest.mark.quality("X5")
def test_a_closed_output_pipe_causes_no_traceback() -> None:
    command = f"{sys.executable} -m manyview tasks --json | head -n 1"
    result = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("[\n", "")


def test_settings_of_all_tasks_are_printed_once_above_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    suite = make_suite(TWO_VIEWS, replace(TWO_VIEWS, action_repeat=4))
    print_tables([suite])
    title, shared_settings, _, header, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "lab: A laboratory (installed)"
    assert shared_settings == "image size: 84; frame stack: 3; views (further cameras): top, left (right)"
    assert header.split() == ["task", "paper", "action", "repeat"]
    assert [row.split()[2] for row in rows] == ["2", "4"]


def test_a_setting_that_only_some_tasks_have_is_blank_for_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([make_suite(TWO_VIEWS, replace(TWO_VIEWS, action_repeat=None))])
    assert "None" not in capsys.readouterr().out


def test_cameras_beyond_the_views_are_in_brackets() -> None:
    two_view_task, three_view_task = make_suite(
        TWO_VIEWS, replace(TWO_VIEWS, views=("top", "left", "right"))
    ).tasks.values()
    assert format_task(two_view_task)[VIEWS] == "top, left (right)"
    assert format_task(three_view_task)[VIEWS] == "top, left, right"


def test_a_suite_that_is_not_installed_names_the_command_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    suite = make_suite(TWO_VIEWS, packages=("a_package_that_nobody_has",))
    print_tables([suite])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["lab: A laboratory (not installed)", f"install: {suite.install}"]
    assert describe_tasks(suite)[0]["install"] == suite.install


def test_a_suite_that_is_installed_names_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([make_suite(TWO_VIEWS, packages=("json",))])
    assert "install: " not in capsys.readouterr().out
