"""`manyview.load`: the actions of a loaded policy are those of an evaluation of the run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import manyview
from manyview.deploy.policy import load_saved_policy
from manyview.envs import MASK, Fault
from manyview.report.policy_rollout import RunPlayer
from manyview.runtime import ActionBounds, Policy, PolicySpec
from manyview.runtime.image_resize import resize_image
from manyview.training import RunDir, checkpoint, factory, run
from manyview.training.preprocessing import prepare_observation
from tests.support import robots
from tests.support.robots import (
    ACTION_HIGH,
    ACTION_LOW,
    CAMERA_SHAPE,
    IMAGE_SIZES,
    TASK,
    keep_views,
    make_observation,
    train_robot,
)
from tests.support.runs import make_short_config, make_short_rollout_config

RUNS: dict[str, Any] = {
    "drqv2+mem": make_short_config("drqv2+mem", env={"frame_stack": 2}),
    "sac+dribo": make_short_config("sac+dribo", replay={"batch_size": 32}, representation={"cameras": "all"}),
    "drqv2+mad": make_short_config("drqv2+mad"),
    "ppo+mem": make_short_rollout_config("ppo+mem", agent={"greedy_evaluation": True}),
    "ppo+flip": make_short_rollout_config("ppo+mem", agent={"greedy_evaluation": True}, env={"augmented_view": "flip"}),
    "ppo+cutout": make_short_rollout_config(
        "ppo+mem", agent={"greedy_evaluation": True}, env={"augmented_view": "cutout"}
    ),
}


@pytest.fixture(scope="module")
def robot_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a short run on the robot task."""
    return train_robot(tmp_path_factory.mktemp("robot") / "run")


@pytest.fixture(scope="module")
def observations() -> list[dict[str, Any]]:
    """Return eight random observations of the robot's cameras."""
    rng = np.random.default_rng(0)
    return [{name: rng.integers(0, 256, CAMERA_SHAPE, np.uint8) for name in ("front", "wrist")} for _ in range(8)]


@pytest.mark.parametrize("name", RUNS)
def test_actions_are_those_of_an_evaluation_with_a_failing_camera(name: str, tmp_path: Path) -> None:
    config = RUNS[name]
    run(config, RunDir(tmp_path / "run"))
    policy = manyview.load(tmp_path / "run")
    with RunPlayer(tmp_path / "run") as player:
        agent, shapes = player.agent, player.shapes
    faults = [Fault(view=shapes.cameras[0].name, kind="gone", at_step=1)]
    env = factory.make_env(config, faults=faults)
    is_masked, steps = False, 0
    with agent.use_new_memory():
        for seed in (1, 2):
            observation, _ = env.reset(seed=seed)
            agent.memory.reset()
            policy.reset()
            done = False
            while not done:
                inputs = prepare_observation(observation, shapes, torch.device("cpu"), episode=0)
                mask = inputs[1]
                expected = shapes.actions.to_env(agent.act(*inputs, step=0, explore=False))[0]
                images = {view.name: observation[view.name][..., -view.channels :] for view in shapes.cameras}
                action = policy.act({**images, MASK: observation[MASK]})
                np.testing.assert_allclose(action, expected, atol=1e-6)
                is_masked, steps = is_masked or not mask.all(), steps + 1
                observation, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
    assert is_masked
    assert steps > 4


def test_actions_follow_stacked_state_vectors(tmp_path: Path) -> None:
    config = make_short_config(
        "sac+mem",
        task="tests.support.state_vectors:NumberedEnv?side=9",
        env={"state": ["grip", "joints"], "state_stack": 3, "frame_stack": 2},
    )
    run(config, RunDir(tmp_path / "run"))
    policy = manyview.load(tmp_path / "run")
    with RunPlayer(tmp_path / "run", trusted_task=config.task) as player:
        agent, shapes = player.agent, player.shapes
    env, steps = factory.make_env(config), 0
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        policy.reset()
        done = False
        while not done:
            inputs = prepare_observation(observation, shapes, torch.device("cpu"), episode=0)
            expected = shapes.actions.to_env(agent.act(*inputs, step=0, explore=False))[0]
            vectors = {vector.name: observation[vector.name][-vector.size :] for vector in shapes.state_vectors}
            action = policy.act({"side": observation["side"][..., -1:], **vectors})
            np.testing.assert_allclose(action, expected, atol=1e-6)
            observation, _, terminated, truncated, _ = env.step(action)
            done, steps = terminated or truncated, steps + 1
    assert steps > 8
    with pytest.raises(ValueError, match="missing state vector 'grip': expected 1 numbers"):
        policy.act({"side": observation["side"][..., -1:]})


def test_an_augmented_view_is_that_of_the_first_evaluation_episode(tmp_path: Path) -> None:
    run(RUNS["ppo+cutout"], RunDir(tmp_path / "run"))
    network = load_saved_policy(tmp_path / "run").network
    images: dict[str, Any] = {view.name: np.full(view.shape, 200, np.uint8) for view in network.spec.views}
    observation = {**images, MASK: np.ones(2, np.int8)}
    views, mask = prepare_observation(observation, network.shapes, torch.device("cpu"), episode=0)
    output_views, output_mask = network._append_derived_views(views[:, :2], mask[:, :2])
    assert views.shape[1] == 3
    assert (views[:, 2] != views[:, 0]).any()
    assert torch.equal(output_views, views)
    assert torch.equal(output_mask, mask)


def test_a_robot_gets_actions_in_its_own_units(robot_run: Path, observations: list[dict[str, Any]]) -> None:
    policy = manyview.load(robot_run)
    assert policy.spec.actions == ActionBounds(ACTION_LOW, ACTION_HIGH)
    assert isinstance(policy.spec.actions, ActionBounds)
    assert policy.spec.control_hz == 20
    policy.reset()
    action = policy.act(observations[0])
    assert ((action >= ACTION_LOW) & (action <= ACTION_HIGH)).all()
    env = factory.make_env(RunDir(robot_run).read_config())
    observation, _ = env.reset(seed=4)
    policy.reset()
    action = policy.act({name: observation[name][..., -3:] for name in ("front", "wrist")})
    with RunPlayer(robot_run, trusted_task=TASK) as player:
        tensors = prepare_observation(observation, player.shapes, torch.device("cpu"), episode=0)
        unscaled = player.agent.act(*tensors, step=0, explore=False)[0].numpy()
    np.testing.assert_allclose(
        action, ACTION_LOW + (unscaled + 1) / 2 * np.subtract(ACTION_HIGH, ACTION_LOW), rtol=1e-5
    )
    env = robots.make_env()
    env.reset(seed=0)
    env.step(policy.spec.actions.normalize(action))  # the environment of the run rescales actions itself
    np.testing.assert_allclose(env.unwrapped.last_action, action, rtol=1e-5)  # type: ignore[attr-defined]


def test_images_of_the_camera_are_resized_as_in_the_run(robot_run: Path, observations: list[dict[str, Any]]) -> None:
    policy, other_policy = manyview.load(robot_run), manyview.load(robot_run)
    for observation in observations:
        resized_images = {name: resize_image(resize_image(image, IMAGE_SIZES[0], "pad"), IMAGE_SIZES[1], "pad")
                 for name, image in observation.items()}  # fmt: skip
        np.testing.assert_array_equal(policy.act(observation), other_policy.act(resized_images))
    env = factory.make_env(RunDir(robot_run).read_config())
    observation, _ = env.reset(seed=3)
    camera_images = env.unwrapped.reset(seed=3)[0]
    policy.reset()
    other_policy.reset()
    run_images = {name: observation[name][..., -3:] for name in ("front", "wrist")}
    np.testing.assert_array_equal(policy.act(camera_images), other_policy.act(run_images))


def test_loading_builds_no_environment_and_runs_no_code_of_the_task(
    robot_run: Path, monkeypatch: pytest.MonkeyPatch, observations: list[dict[str, Any]]
) -> None:
    monkeypatch.delattr(robots, "make_env")
    monkeypatch.setattr(factory, "make", None)
    assert manyview.load(robot_run).act(observations[0]).shape == (2,)


def test_a_missing_view_is_masked_in_every_form(robot_run: Path, observations: list[dict[str, Any]]) -> None:
    policies = [manyview.load(robot_run) for _ in range(3)]
    for number, observation in enumerate(observations):
        front_only = {"front": observation["front"]}
        variants = [front_only, {**front_only, "wrist": None}, {**observation, MASK: np.array([1, 0], np.int8)}]
        first_action, *other_actions = [
            policy.act(observation if number % 3 else variant)
            for policy, variant in zip(policies, variants, strict=True)
        ]
        for other_action in other_actions:
            np.testing.assert_array_equal(first_action, other_action)


def test_a_stack_never_spans_a_reset_or_a_missing_frame(robot_run: Path, observations: list[dict[str, Any]]) -> None:
    policy, other_policy = manyview.load(robot_run), manyview.load(robot_run)
    first = policy.act(observations[0])
    assert not np.array_equal(policy.act(observations[1]), other_policy.act(observations[1]))
    policy.reset()
    np.testing.assert_array_equal(policy.act(observations[0]), first)
    # After a missing frame the stack of this view restarts.
    policy.reset()
    policy.act(observations[0])
    policy.act(keep_views(observations[1], ("wrist",), policy))
    action = policy.act(observations[2])
    other_policy.reset()
    other_policy.act(keep_views(observations[0], ("wrist",), policy))
    other_policy.act(keep_views(observations[1], ("wrist",), policy))
    np.testing.assert_array_equal(action, other_policy.act(observations[2]))
    with pytest.raises(ValueError, match="no view of robot 0 is present"):
        policy.act({"front": None})
    other_policy.reset()
    np.testing.assert_array_equal(policy.act(observations[3]), other_policy.act(observations[3]))


def test_the_caller_may_reuse_its_image_buffers(robot_run: Path, observations: list[dict[str, Any]]) -> None:
    policy, other_policy = manyview.load(robot_run), manyview.load(robot_run)
    buffers = {name: np.empty_like(image) for name, image in observations[0].items()}
    for observation in observations:
        for name, image in observation.items():
            buffers[name][:] = image
        np.testing.assert_array_equal(policy.act(buffers), other_policy.act(observation))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rear": np.zeros(CAMERA_SHAPE, np.uint8)}, "unknown entry 'rear'.*expected some of front, wrist"),
        ({"front": np.zeros((30, 40, 4), np.uint8)}, r"view 'front': expected the shape \[height, width, 3\], got"),
        ({"front": np.zeros((30, 40), np.uint8)}, r"view 'front': .*got \[30, 40\]"),
        ({"front": np.zeros((0, 40, 3), np.uint8)}, "view 'front'"),
        ({"front": np.zeros(CAMERA_SHAPE, np.float32)}, "expected an array of uint8, got float32"),
        ({"front": [[1]]}, "expected an array of uint8, got list"),
        ({MASK: np.ones(3, np.int8)}, "invalid mask"),
        ({MASK: np.array([1, 2])}, "invalid mask"),
    ],
)
def test_an_invalid_observation_is_an_error_and_changes_nothing(
    change: dict[str, Any], message: str, robot_run: Path, observations: list[dict[str, Any]]
) -> None:
    policy, other_policy = manyview.load(robot_run), manyview.load(robot_run)
    policy.act(observations[0])
    other_policy.act(observations[0])
    with pytest.raises(ValueError, match=message):
        policy.act({**observations[1], **change})
    np.testing.assert_array_equal(policy.act(observations[2]), other_policy.act(observations[2]))


def test_images_of_another_size_are_an_error_if_the_run_did_not_resize(tmp_path: Path) -> None:
    run(RUNS["drqv2+mem"], RunDir(tmp_path / "run"))
    policy = manyview.load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"expected the shape \[20, 20, 1\], got \[40, 40, 1\].*did not resize"):
        policy.act({"column": np.zeros((40, 40, 1), np.uint8)})
    policy.act({"column": np.zeros((20, 20), np.uint8)})  # gray without a channel axis


def test_a_batch_of_robots_acts_as_single_robots(robot_run: Path) -> None:
    batch_policy, single_policies = manyview.load(robot_run, num_robots=3), [manyview.load(robot_run) for _ in range(3)]
    rng = np.random.default_rng(1)
    for step in range(6):
        observations = [make_observation(batch_policy, rng) for _ in range(3)]
        observations[step % 3].pop("front")
        if step == 3:
            batch_policy.reset([1])
            single_policies[1].reset()
        expected = [policy.act(observation) for policy, observation in zip(single_policies, observations, strict=True)]
        np.testing.assert_allclose(batch_policy.act_batch(observations), expected, atol=1e-5)
    with pytest.raises(ValueError, match="act_batch for 3 robots"):
        batch_policy.act(observations[0])
    with pytest.raises(ValueError, match="each of 3 robots, got 1"):
        batch_policy.act_batch(observations[:1])
    for index in (3, -1):
        with pytest.raises(ValueError, match=f"expected 0 to 2, got {index}"):
            batch_policy.reset([index])


def test_recurrent_robots_are_reset_one_by_one(tmp_path: Path) -> None:
    run(RUNS["sac+dribo"], RunDir(tmp_path / "run"))
    policy, rng = manyview.load(tmp_path / "run", num_robots=2), np.random.default_rng(0)
    observation = make_observation(policy, rng)
    first = policy.act_batch([observation, observation])
    second = policy.act_batch([observation, observation])
    assert not np.allclose(first, second)
    policy.reset([0])
    third = policy.act_batch([observation, observation])
    np.testing.assert_allclose(third[0], first[0], atol=1e-6)
    assert not np.allclose(third[1], first[1])


def test_the_last_the_best_or_a_named_checkpoint_is_loaded(robot_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(robot_run, path)
    names = [directory.name for directory in checkpoint.list_checkpoints(path / "checkpoints")]
    assert names == ["000000040", "000000020", "000000000"]
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    returns = {0: 1.0, 20: 5.0, 40: 3.0}
    for record in records:
        if record["kind"] == "evaluation":
            record["return"] = returns[record["frames"]]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def compute_first_action(**options: Any) -> list[float]:
        policy = manyview.load(options.pop("path", path), **options)
        return list(policy.act(make_observation(policy, np.random.default_rng(0))))

    last_action, middle_action = compute_first_action(checkpoint=names[0]), compute_first_action(checkpoint=names[1])
    assert last_action != middle_action
    assert compute_first_action() == compute_first_action(checkpoint="last") == last_action
    assert compute_first_action(checkpoint="best") == middle_action
    assert load_saved_policy(path, choice="best").checkpoint_path.name == names[1]  # before the first update
    assert compute_first_action(path=path / "checkpoints" / names[1]) == middle_action
    with pytest.raises(FileNotFoundError, match=r"expected last, best or one of 000000040, .*got '\.\./secret'"):
        manyview.load(path, checkpoint="../secret")
    (path / "metrics.jsonl").write_text(json.dumps(records[0]) + "\n")
    with pytest.raises(ValueError, match="no evaluation at the frames of its checkpoints"):
        manyview.load(path, checkpoint="best")


def rewrite_spec(path: Path, spec: Any) -> None:
    """Replace the policy spec in all checkpoints, or remove it if None.

    The checksums stay valid.
    """
    for directory in checkpoint.list_checkpoints(path / "checkpoints"):
        old_checkpoint = checkpoint.load_checkpoint(directory)
        manifest = {name: value for name, value in old_checkpoint.manifest.items() if name != "policy"}
        shutil.rmtree(directory)
        checkpoint.save_checkpoint(
            directory, old_checkpoint.state, manifest if spec is None else {**manifest, "policy": spec}
        )


def test_a_run_of_an_earlier_version_builds_its_environment(robot_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(robot_run, path)
    rewrite_spec(path, None)
    with pytest.raises(ValueError, match="is code that is not trusted: expected --own-task"):
        manyview.load(path)
    assert manyview.load(path, own_task=TASK).spec == manyview.load(robot_run).spec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("views", [{"name": "front", "height": 10**9, "width": 10**9, "channels": 3, "camera_size": None}]),
        ("views", []),
        ("frame_stack", 2),
        ("frame_stack", True),
        ("actions", {"low": [1.0], "high": [-1.0]}),
        ("actions", {"low": [-1.0] * 3, "high": [1.0] * 3}),
        ("surplus", 1),
    ],
)
def test_a_hostile_manifest_is_refused(field: str, value: Any, robot_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(robot_run, path)
    rewrite_spec(path, {**manyview.load(robot_run).spec.to_plain(), field: value})
    with pytest.raises(ValueError, match=r"is invalid|cannot be loaded"):
        manyview.load(path)


def test_the_manifest_of_a_run_holds_the_spec(robot_run: Path) -> None:
    manifest = RunDir(robot_run).read_manifest()
    assert PolicySpec.from_plain(manifest["policy"]) == manyview.load(robot_run).spec


def test_a_missing_run_or_checkpoint_is_named(tmp_path: Path, robot_run: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no run"):
        manyview.load(tmp_path)
    shutil.copytree(robot_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        manyview.load(tmp_path / "run")


def test_importing_manyview_imports_neither_torch_nor_numpy() -> None:
    script = "import sys, manyview; print('load' in manyview.__all__, {'torch', 'numpy'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.split() == ["True", "set()"]


def test_load_returns_a_policy(robot_run: Path) -> None:
    assert isinstance(manyview.load(str(robot_run)), Policy)
