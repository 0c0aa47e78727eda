"""Import of LeRobot datasets: transitions, mappings of features and errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.data import ReplayBuffer
from manyview.data.demonstrations import load_demonstrations
from manyview.data.lerobot.layout import DatasetError
from manyview.data.lerobot.reader import LeRobotDataset
from manyview.deploy.dataset_mapping import MappingOptions
from manyview.deploy.import_dataset import Import, ImportOptions, describe_import, import_demonstrations, parse_pairs
from manyview.runtime.image_resize import resize_image
from manyview.runtime.spec import Resize
from manyview.training import RunConfig
from tests.support.lerobot import DATA_FILE, draw_frame, edit_features, edit_table, make_dataset
from tests.support.robots import ACTION_HIGH, ACTION_LOW, CAMERA_SHAPE, TASK
from tests.support.runs import make_short_config

EPISODE_LENGTHS = (4, 6, 3)
IMAGE_SIZE = CAMERA_SHAPE[:2]


def make_robot_config(**env: Any) -> RunConfig:
    """Return a run config on the robot task, with changes of its environment settings."""
    return make_short_config(task=TASK, env={"frame_stack": 2, "image_size": 16, "augmented_view": "none", **env})


def make_robot_actions(lengths: tuple[int, ...] = EPISODE_LENGTHS) -> Any:
    """Return actions in the units of the robot, up to its bounds."""
    normalized_actions = np.sin(np.arange(sum(lengths))[:, None] + np.arange(2))
    return (np.array(ACTION_LOW) + (normalized_actions + 1) / 2 * (np.array(ACTION_HIGH) - ACTION_LOW)).astype(
        np.float32
    )


def run_import(
    dataset_path: Path, config: RunConfig, out: Path, *, state: Any = None, cameras: Any = None, **options: Any
) -> Import:
    """Import a dataset with the mapping options among `options`."""
    mapping = {name: options.pop(name) for name in ("skip_cameras", "mask_missing") if name in options}
    mapping_options = MappingOptions(cameras=cameras or {}, state=state or {}, **mapping)
    return import_demonstrations(dataset_path, config, out, options=ImportOptions(mapping=mapping_options, **options))


def load_replay(result: Import, out: Path, *, frame_stack: int = 1) -> ReplayBuffer:
    """Return the replay buffer of imported demonstrations."""
    manifest = result.manifest
    return load_demonstrations(
        out,
        manifest.views,
        action_size=manifest.action_size,
        frame_stack=frame_stack,
        state_vectors=manifest.state_vectors,
    ).replay


@pytest.fixture
def dataset_path(tmp_path: Path) -> Path:
    """Return the path of a dataset with the views of the robot."""
    make_dataset(
        tmp_path / "dataset", shape=IMAGE_SIZE, lengths=EPISODE_LENGTHS, columns={"action": make_robot_actions()}
    )
    return tmp_path / "dataset"


def test_every_transition_is_imported_with_resized_images_and_scaled_actions(
    dataset_path: Path, tmp_path: Path
) -> None:
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    shapes = {view.name: view.shape for view in result.manifest.views}
    assert shapes == {"front": (16, 16, 3), "wrist": (16, 16, 3)}
    assert (result.manifest.transitions, result.num_dropped, result.num_clipped) == (13, 0, 0)
    replay, index = load_replay(result, tmp_path / "out"), 0
    normalized_actions = np.sin(np.arange(13)[:, None] + np.arange(2))
    for episode, length in enumerate(EPISODE_LENGTHS):
        for frame in range(length + 1):
            image_frame = min(frame, length - 1)  # the dataset has no image after the last action
            views, mask = replay.stack_frames(np.array([index]))
            assert mask.all()
            for camera in range(2):
                # The environment pads images to a square of 24 pixels, and the run resizes that to 16.
                expected_image = resize_image(
                    resize_image(draw_frame(episode, image_frame, camera, IMAGE_SIZE), 24, "pad"), 16, "pad"
                )
                error = np.abs(views[0, camera].transpose(1, 2, 0).astype(int) - expected_image)
                assert error.mean() < 2
            record = replay.steps[index]
            assert record["acted"] == (frame < length)
            assert record["repeated"] == (frame == length)  # its stack is that of the frame before
            if frame < length:
                start = sum(EPISODE_LENGTHS[:episode]) + frame
                assert np.allclose(record["action"], normalized_actions[start], atol=1e-6)
                assert record["reward"] == (frame == length - 1)
                assert record["terminated"] == (frame == length - 1)
            index += 1


def test_an_episode_that_timed_out_ends_without_its_last_action(dataset_path: Path, tmp_path: Path) -> None:
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out", ends="timeout")
    assert (result.manifest.transitions, result.num_dropped, result.total_reward) == (10, 3, 0.0)
    replay = load_replay(result, tmp_path / "out")
    assert replay.steps["acted"][:13].tolist() == [True] * 3 + [False] + [True] * 5 + [False] + [True] * 2 + [False]
    assert not replay.steps["terminated"].any()
    assert not replay.steps["repeated"].any()


def test_a_column_of_terminations_wins_over_the_option(dataset_path: Path, tmp_path: Path) -> None:
    terminations = np.zeros(13, bool)
    terminations[3] = True
    edit_table(dataset_path / DATA_FILE, **{"next.terminated": terminations})
    edit_features(dataset_path, next__terminated={"dtype": "bool", "shape": [1]})
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    assert (result.manifest.transitions, result.num_dropped) == (11, 2)


def test_an_episode_of_one_frame_without_an_end_is_left_out(tmp_path: Path) -> None:
    make_dataset(tmp_path / "d", shape=IMAGE_SIZE, lengths=(1, 3), columns={"action": make_robot_actions((1, 3))})
    result = run_import(tmp_path / "d", make_robot_config(), tmp_path / "out", ends="timeout")
    assert (result.manifest.episodes, result.manifest.transitions, result.num_dropped) == (1, 2, 2)
    result_with_terminations = run_import(tmp_path / "d", make_robot_config(), tmp_path / "ended")
    assert (result_with_terminations.manifest.episodes, result_with_terminations.manifest.transitions) == (2, 4)


def test_missing_rewards_can_be_those_of_a_success(tmp_path: Path) -> None:
    make_dataset(
        tmp_path / "d",
        shape=IMAGE_SIZE,
        columns={"action": make_robot_actions()},
        leave_out=("next.reward", "next.done"),
    )
    with pytest.raises(DatasetError, match=r"has no rewards: expected the column next.reward.*--rewards final"):
        run_import(tmp_path / "d", make_robot_config(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    result = run_import(tmp_path / "d", make_robot_config(), tmp_path / "out", rewards="final")
    replay = load_replay(result, tmp_path / "out")
    rewards = replay.steps["reward"][: result.manifest.steps][replay.steps["acted"][: result.manifest.steps]]
    assert rewards.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    assert result.total_reward == 3


def test_rewards_of_a_success_without_a_termination_are_refused(dataset_path: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no reward would remain: .* and --ends timeout say"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out", rewards="final", ends="timeout")
    edit_table(dataset_path / DATA_FILE, **{"next.done": [False] * 13})
    with pytest.raises(DatasetError, match=r"no reward would remain: .* no episode has ended by termination"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out", rewards="final")
    assert not (tmp_path / "out").exists()


def test_a_termination_in_the_middle_of_an_episode_is_refused(dataset_path: Path, tmp_path: Path) -> None:
    edit_table(dataset_path / DATA_FILE, **{"next.done": [True] + [False] * 12})
    with pytest.raises(DatasetError, match=r"episode 0 goes beyond its end: .* got it in frame 0 of 4"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")


def test_actions_in_other_units_are_refused_or_clipped(dataset_path: Path, tmp_path: Path) -> None:
    actions = make_robot_actions()
    actions[5, 1] = 11.0  # ten percent of the range above the bound
    edit_table(dataset_path / DATA_FILE, action=list(actions))
    with pytest.raises(DatasetError, match=r"episode 1, frame 1: action\[1\] exceeds .* expected 0 to 10, got 11"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out", clip_actions=True)
    assert result.num_clipped == 1
    assert load_replay(result, tmp_path / "out").steps["action"].max() == 1


def test_actions_slightly_beyond_the_bounds_are_clipped_and_counted(dataset_path: Path, tmp_path: Path) -> None:
    actions = make_robot_actions()
    actions[[5, 7], 0] = ACTION_LOW[0] - 0.2
    edit_table(dataset_path / DATA_FILE, action=list(actions))
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    assert result.num_clipped == 2
    assert load_replay(result, tmp_path / "out").steps["action"].min() == -1
    assert "clipped      2 actions beyond the bounds of the task" in describe_import(result, dataset_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_actions_that_are_no_numbers_are_refused(dataset_path: Path, tmp_path: Path, value: float) -> None:
    actions = make_robot_actions()
    actions[6, 0] = value
    edit_table(dataset_path / DATA_FILE, action=list(actions))
    with pytest.raises(DatasetError, match=r"episode 1: action is not finite"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")


def test_two_rewards_for_a_frame_are_refused(dataset_path: Path, tmp_path: Path) -> None:
    edit_table(dataset_path / DATA_FILE, **{"next.reward": [[0.0, 1.0]] * 13})
    edit_features(dataset_path, next__reward={"dtype": "float32", "shape": [2]})
    with pytest.raises(
        DatasetError, match=r"unsupported next\.reward: expected one number for each frame, got .*\[2\]"
    ):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")


def test_rewards_that_are_no_numbers_are_refused(dataset_path: Path, tmp_path: Path) -> None:
    edit_table(dataset_path / DATA_FILE, **{"next.reward": [0.0, float("nan")] + [0.0] * 11})
    with pytest.raises(DatasetError, match=r"episode 0: .*reward"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")


def test_cameras_are_matched_by_name_or_by_option(tmp_path: Path) -> None:
    make_dataset(
        tmp_path / "d", cameras=("top", "hand", "side"), shape=IMAGE_SIZE, columns={"action": make_robot_actions()}
    )
    config = make_robot_config()
    with pytest.raises(DatasetError, match=r"no view for the cameras observation.images.top, .* got front, wrist"):
        run_import(tmp_path / "d", config, tmp_path / "out")
    with pytest.raises(DatasetError, match=r"no view for the cameras observation\.images\.side"):
        run_import(tmp_path / "d", config, tmp_path / "out", cameras={"front": "top", "wrist": "hand"})
    result = run_import(
        tmp_path / "d",
        config,
        tmp_path / "out",
        cameras={"front": "hand", "wrist": "observation.images.top"},
        skip_cameras=("side",),
    )
    assert dict(result.mapping.cameras) == {"front": "observation.images.hand", "wrist": "observation.images.top"}
    views, _ = load_replay(result, tmp_path / "out").stack_frames(np.array([0]))
    mean_blue = views[0, :, 2].mean((1, 2))
    assert mean_blue[0] > mean_blue[1] + 40  # `hand` is the second camera of the dataset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": {"back": "front"}}, "--cameras back: expected a view of front, wrist"),
        ({"cameras": {"front": "nose"}}, "unknown camera 'nose': expected one of the dataset"),
        ({"skip_cameras": ("nose",)}, "unknown camera 'nose'"),
        ({"cameras": {"front": "wrist"}, "skip_cameras": ("front",)}, "belongs to two views"),
        ({"skip_cameras": ("wrist",)}, "no camera for the views wrist: .*--mask-missing"),
        ({"skip_cameras": ("wrist", "front"), "mask_missing": True}, "every view is masked"),
    ],
)
def test_invalid_camera_options_are_refused(
    dataset_path: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    # A skipped camera is not matched by its name: the view `wrist` has no camera if `wrist` is skipped.
    with pytest.raises(DatasetError, match=message):
        run_import(dataset_path, make_robot_config(), tmp_path / "out", **options)


def test_a_view_without_a_camera_is_masked_if_asked(tmp_path: Path) -> None:
    make_dataset(tmp_path / "d", cameras=("front",), shape=IMAGE_SIZE, columns={"action": make_robot_actions()})
    with pytest.raises(DatasetError, match=r"no camera for the views wrist: expected .*, got obs"):
        run_import(tmp_path / "d", make_robot_config(), tmp_path / "out")
    result = run_import(tmp_path / "d", make_robot_config(), tmp_path / "out", mask_missing=True)
    views, mask = load_replay(result, tmp_path / "out").stack_frames(np.arange(result.manifest.steps))
    assert mask[:, 0].all()
    assert not mask[:, 1].any()
    assert not views[:, 1].any()


def test_flags_of_absent_cameras_mask_their_frames(dataset_path: Path, tmp_path: Path) -> None:
    present = np.ones((13, 2), bool)
    present[[1, 5], 0] = False
    edit_table(dataset_path / DATA_FILE, **{"complementary_info.present": list(present)})
    names = ["wrist", "front"]
    edit_features(dataset_path, complementary_info__present={"dtype": "bool", "shape": [2], "names": names})
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    replay = load_replay(result, tmp_path / "out")
    _, mask = replay.stack_frames(np.arange(result.manifest.steps))
    assert mask[:, 0].all()
    assert np.flatnonzero(~mask[:, 1]).tolist() == [1, 6]  # an episode has one step more than frames


def test_another_number_of_actions_is_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path / "d", shape=IMAGE_SIZE, action_size=6)
    with pytest.raises(DatasetError, match=r"another size than the task: expected 2 numbers, got shape \[6\]"):
        run_import(tmp_path / "d", make_robot_config(), tmp_path / "out")


def test_an_existing_folder_is_not_changed(dataset_path: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(FileExistsError, match="expected a new folder"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_failed_import_leaves_no_files(dataset_path: Path, tmp_path: Path) -> None:
    edit_table(dataset_path / DATA_FILE, **{"next.done": [False] * 10 + [True] + [False] * 2})
    with pytest.raises(DatasetError, match="episode 2 goes beyond its end"):
        run_import(dataset_path, make_robot_config(), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset"]


STATE_TASK = "tests.support.robots:make_env_with_state"


def make_state_config() -> RunConfig:
    """Return a run config on the robot task with state vectors."""
    return make_short_config(task=STATE_TASK, env={"frame_stack": 2, "image_size": 16, "augmented_view": "none"})


def import_state_vectors(
    tmp_path: Path, *, names: Any = None, state_size: int = 3, **options: Any
) -> np.ndarray[Any, Any]:
    """Import a dataset whose state is step + column / 10.

    Return the vectors of the first five frames, joints before gripper.
    """
    make_dataset(
        tmp_path / "d",
        shape=IMAGE_SIZE,
        columns={"action": make_robot_actions()},
        state_size=state_size,
        state_names=names,
    )
    result = run_import(tmp_path / "d", make_state_config(), tmp_path / "out", **options)
    assert [(vector.name, vector.size) for vector in result.manifest.state_vectors] == [("joints", 2), ("gripper", 1)]
    replay = load_replay(result, tmp_path / "out")
    return replay.steps["vectors"][[0, 1, 2, 3, 5]]


def test_state_vectors_are_matched_by_the_names_of_their_numbers(tmp_path: Path) -> None:
    vectors = import_state_vectors(tmp_path, names=["gripper", "joints.1", "joints.0"])
    frame_indices = np.array([0, 1, 2, 3, 4])[:, None]
    assert np.allclose(vectors, frame_indices + np.array([0.2, 0.1, 0.0]))


def test_state_vectors_are_matched_by_option(tmp_path: Path) -> None:
    vectors = import_state_vectors(
        tmp_path, state_size=5, state={"joints": "observation.state[3:5]", "gripper": "observation.state[0:1]"}
    )
    assert np.allclose(vectors, np.array([0, 1, 2, 3, 4])[:, None] + np.array([0.3, 0.4, 0.0]))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {},
            r"no 2 numbers for the state vector joints: .* joints\.0 to joints\.1 in .*--state joints=",
        ),
        ({"joints": "observation.state[0:2]"}, "no 1 numbers for the state vector gripper"),
        ({"joints": "observation.state[0:3]"}, "--state joints: expected 2 numbers"),
        ({"joints": "observation.state[2:4]"}, "--state joints: expected 2 numbers"),
        ({"joints": "observation.state[-1:1]"}, r"expected FEATURE or FEATURE\[START:END\]"),
        ({"joints": "nose"}, "no feature 'nose': expected one of "),
        ({"joints": "observation.state[0:2]", "gripper": "observation.state[2:3]", "x": "a"}, "--state x: expected a"),
    ],
)
def test_state_vectors_without_a_match_are_refused(tmp_path: Path, state: dict[str, str], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        import_state_vectors(tmp_path, state=state)


@pytest.mark.parametrize("pairs", [["a"], ["a="], ["=b"], ["a=b", "a=c"]])
def test_malformed_pairs_are_refused(pairs: list[str]) -> None:
    with pytest.raises(ValueError, match="invalid --cameras: expected NAME=VALUE"):
        parse_pairs(pairs, "--cameras")
    assert parse_pairs(["a=b=c"], "--cameras") == {"a": "b=c"}


def test_images_are_resized_step_by_step_as_the_environment_does(dataset_path: Path, tmp_path: Path) -> None:
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    views, _ = load_replay(result, tmp_path / "out").stack_frames(np.array([0]))
    with LeRobotDataset(dataset_path) as dataset:
        episode = next(dataset.iter_episodes(["action"], ["observation.images.front"]))
        decoded_image = next(episode.images["observation.images.front"])
    expected = resize_image(resize_image(decoded_image, 24, "pad"), 16, "pad")
    assert np.array_equal(views[0, 0].transpose(1, 2, 0), expected)
    assert not np.array_equal(expected, resize_image(decoded_image, 16, "pad"))


def test_the_report_says_how_images_were_resized(dataset_path: Path, tmp_path: Path) -> None:
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    height, width = IMAGE_SIZE
    report = describe_import(result, dataset_path)
    assert (
        f"images       front {height} x {width}, padded to a square, resized to 16 x 16; "
        f"wrist {height} x {width}, padded to a square, resized to 16 x 16"
    ) in report
    crop_report = "\n".join(describe_import(replace(result, resize=Resize((16,))), dataset_path))
    assert f"front {height} x {width}, cropped to the central {height} x {height}, resized to 16 x 16" in crop_report


def test_images_of_the_size_of_the_view_need_no_report(dataset_path: Path, tmp_path: Path) -> None:
    result = run_import(dataset_path, make_robot_config(), tmp_path / "out")
    unresized_result = replace(result, image_sizes={"front": (16, 16), "wrist": (16, 16)})
    assert not any(line.startswith("images") for line in describe_import(unresized_result, dataset_path))


def test_other_proportions_than_those_of_the_training_camera_are_refused(tmp_path: Path) -> None:
    height, width = IMAGE_SIZE
    make_dataset(
        tmp_path / "d", shape=(width, height), lengths=EPISODE_LENGTHS, columns={"action": make_robot_actions()}
    )
    expected = rf"invalid image of view 'front': expected {height} x {width} pixels as in training"
    with pytest.raises(DatasetError, match=expected):
        run_import(tmp_path / "d", make_robot_config(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
