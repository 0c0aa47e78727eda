"""Environments from a user's function, with arguments in the name of the task."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from manyview.config.presets import make_config
from manyview.envs import MultiView, get_views, make, make_vector
from manyview.envs.contract import EnvError
from manyview.envs.custom import parse_argument
from manyview.envs.toy import HiddenGoal
from manyview.envs.views import Observation
from manyview.training.run_dir import default_run_path

CALLS: list[dict[str, Any]] = []
MODULE = __name__


def make_robot(front: int = 0, wrist: int = 1, *, serial: str = "", speed: float = 1.0, dry: bool = False) -> Any:
    CALLS.append({"front": front, "wrist": wrist, "serial": serial, "speed": speed, "dry": dry})
    return HiddenGoal()


def make_env_of_device(device):  # type: ignore[no-untyped-def]
    return HiddenGoal(device)


def make_any(**arguments: Any) -> Any:
    CALLS.append(arguments)
    return HiddenGoal()


def make_broken(depth: int = 0) -> gym.Env[Observation, Any]:
    raise RuntimeError(f"no robot at depth {depth}")


def make_wide_env() -> gym.Env[Observation, Any]:
    class WideCameraEnv(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 255, (6, 12, 3), np.uint8)
        action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed, options=options)
            return np.full((6, 12, 3), 200, np.uint8), {}

    return MultiView(WideCameraEnv(), views={"wide": ""}, aspect="pad")


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("1.5", 1.5),
        ("-0.25", -0.25),
        ("1e3", 1000.0),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1.", "1."),
        ("٣", "٣"),
        ("", ""),
        (" 1", " 1"),
        ("1\n", "1\n"),
        ("None", "None"),
        ("[1, 2]", "[1, 2]"),
        ("/dev/video0", "/dev/video0"),
        ("__import__('os').system('false')", "__import__('os').system('false')"),
    ],
)
def test_values_are_read_as_json_scalars_and_never_evaluated(text: str, value: Any) -> None:
    parsed = parse_argument(text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_arguments_reach_the_function_by_name() -> None:
    make(f"{MODULE}:make_robot?front=2&speed=0.5&dry=true").close()
    make(f"{MODULE}:make_robot").close()
    assert CALLS == [
        {"front": 2, "wrist": 1, "serial": "", "speed": 0.5, "dry": True},
        {"front": 0, "wrist": 1, "serial": "", "speed": 1.0, "dry": False},
    ]


def test_a_parameter_annotated_as_text_gets_text() -> None:
    make(f"{MODULE}:make_robot?serial=831612073525").close()
    assert CALLS[0]["serial"] == "831612073525"


def test_values_are_percent_decoded() -> None:
    make(f"{MODULE}:make_any?device=/dev/video%31&note=a%26b%3Dc+d").close()
    assert CALLS == [{"device": "/dev/video1", "note": "a&b=c+d"}]


def test_every_environment_of_a_vector_gets_the_arguments() -> None:
    make_vector(f"{MODULE}:make_robot?front=3", 2).close()
    assert [call["front"] for call in CALLS] == [3, 3]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "make_robot?frnt=1",
            r"wrong arguments of .*:make_robot: expected make_robot\(front: int = 0, .*got frnt=1 .*unexpected.*'frnt'",
        ),
        (
            "make_env_of_device",
            r"expected make_env_of_device\(device\), got none .*missing a required argument: 'device'",
        ),
        ("make_robot?front", "expected name=value, each name once"),
        ("make_robot?front=1&front=2", "each name once"),
        ("make_robot?=1", "expected name=value"),
        ("make_robot?front=1&", "expected name=value"),
        ("make_robot?a.b=1", "expected name=value"),
        ("nothing?front=1", "has no function 'nothing'"),
    ],
)
def test_wrong_arguments_are_named_with_the_signature(task: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(f"{MODULE}:{task}")
    assert not CALLS


def test_an_error_of_the_function_is_reported() -> None:
    with pytest.raises(EnvError, match="make_broken: the function raised RuntimeError: no robot at depth 3"):
        make(f"{MODULE}:make_broken?depth=3")


def test_the_location_of_an_error_is_a_line_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "robot_with_a_typo.py").write_text("import manyview\n\ndef make():\n    return manyview.MultiVew()\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError, match=r"no attribute 'MultiVew' \(.*robot_with_a_typo\.py:4\)$"):
        make("robot_with_a_typo:make")


def test_an_import_error_names_the_missing_module_and_where_it_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "robot_with_drivers.py").write_text("\nimport drivers_of_nobody\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=rf"cannot import nowhere\.at_all:make: .* 'nowhere' in {tmp_path} or among"):
        make("nowhere.at_all:make")
    with pytest.raises(ImportError, match=r"make: No module named 'drivers_of_nobody' \(.*robot_with_drivers\.py:2\)"):
        make("robot_with_drivers:make")


@pytest.mark.parametrize("value", ["$(touch EXECUTED)", ";touch EXECUTED", "../../EXECUTED", "\x1b[2J", "'; import os"])
def test_hostile_values_are_text(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(f"{MODULE}:make_any?value={value}").close()
    assert [{"value": value}] == CALLS
    assert not list(tmp_path.iterdir())


def test_control_characters_do_not_reach_the_terminal() -> None:
    with pytest.raises(ValueError, match="invalid arguments") as error:
        make(f"{MODULE}:make_any?\x1b[2J")
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("my_robot:make_env?front=0&wrist=2", "my_robot-make_env-front=0-wrist=2"),
        ("my_robot:make_env?device=/dev/video0", "my_robot-make_env-device=-dev-video0"),
        ("my_robot:make_env?path=../../etc", "my_robot-make_env-path=..-..-etc"),
    ],
)
def test_a_run_directory_is_one_name_below_runs(task: str, name: str) -> None:
    path = default_run_path(make_config(task, method="drqv2+mem"))
    assert path.parts == ("runs", name, "drqv2+mem", "seed1")


def test_the_image_size_of_a_run_resizes_a_custom_environment() -> None:
    env = make(f"{MODULE}:make_wide_env", image_size=4, frame_stack=2)
    assert [view.shape for view in get_views(env)] == [(4, 4, 3)]
    image = env.reset(seed=0)[0]["wide"]
    assert image.shape == (4, 4, 6)
    assert (image[[0, 3]] == 0).all(), "the aspect that MultiView declares"
    assert (image[1:3] == 200).all()


def test_an_option_that_only_simulators_have_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match="expected one of views, state, image_size, frame_stack, state_stack, faults, got render_quality",
    ):
        make(f"{MODULE}:make_robot", render_quality="fast")
