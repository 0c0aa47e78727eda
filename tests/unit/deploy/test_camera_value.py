"""Camera values: Shapley values against closed forms, and the report of a run."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from manyview.agents import ActionSpec
from manyview.cli.main import main
from manyview.config.overrides import apply_overrides
from manyview.deploy import camera_figure
from manyview.deploy.camera_figure import draw_cameras
from manyview.deploy.camera_value import (
    FAULT_KINDS,
    CameraReport,
    compute_shapley_values,
    list_subsets,
    measure_cameras,
)
from manyview.report.policy_rollout import RandomPolicy, RunPlayer
from manyview.report.statistics import estimate_episode_mean
from manyview.training import RunDir, load_preset, run
from tests.support.run_dirs import TASK, TINY_RUN

CAMERAS = ("upright", "lying")
THREE_CAMERAS = ("a", "b", "c")


def make_returns(
    *values: float, cameras: tuple[str, ...] = THREE_CAMERAS
) -> dict[tuple[str, ...], NDArray[np.float64]]:
    """Return one episode return for each subset of the cameras."""
    return {subset: np.array([value]) for subset, value in zip(list_subsets(cameras), values, strict=True)}


def test_all_subsets_are_played_up_to_four_cameras() -> None:
    assert list_subsets(("a", "b")) == [(), ("a",), ("b",), ("a", "b")]
    assert len(list_subsets("abcd")) == 16
    subsets = list_subsets("abcde")
    assert len(subsets) == 1 + 5 + 5 + 1
    assert {len(subset) for subset in subsets} == {0, 1, 4, 5}


def test_a_camera_that_alone_decides_has_the_whole_value() -> None:
    returns = make_returns(1, 9, 1, 1, 9, 9, 1, 9)  # 9 with camera a, else 1
    assert {name: value[0] for name, value in compute_shapley_values(returns, THREE_CAMERAS).items()} == {
        "a": 8,
        "b": 0,
        "c": 0,
    }


def test_two_cameras_that_only_help_together_share_the_value() -> None:
    values = compute_shapley_values(make_returns(0, 0, 0, 0, 6, 0, 0, 6), THREE_CAMERAS)  # 6 with both a and b, else 0
    assert [values[name][0] for name in THREE_CAMERAS] == pytest.approx([3, 3, 0])


def test_values_are_the_mean_gain_over_all_orders_of_adding_cameras() -> None:
    rng = np.random.default_rng(0)
    cameras = ("a", "b", "c", "d")
    returns = {subset: rng.normal(size=7) for subset in list_subsets(cameras)}
    values = compute_shapley_values(returns, cameras)
    for camera in cameras:
        gains = []
        for order in permutations(cameras):
            earlier_cameras = order[: order.index(camera)]
            with_camera = tuple(c for c in cameras if c in (*earlier_cameras, camera))
            gains.append(returns[with_camera] - returns[tuple(c for c in cameras if c in earlier_cameras)])
        np.testing.assert_allclose(values[camera], np.mean(gains, axis=0), atol=1e-12)
    np.testing.assert_allclose(np.sum(list(values.values()), axis=0), returns[cameras] - returns[()], atol=1e-12)


def test_the_interval_of_one_episode_is_its_return() -> None:
    assert estimate_episode_mean(np.array([3.0])) == (3.0, 3.0, 3.0)
    mean, low, high = estimate_episode_mean(np.array([0.0, 10.0, 20.0]))
    assert (mean, low, high) == (10.0, 0.0, 20.0)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a finished tiny run."""
    path = tmp_path_factory.mktemp("trained")
    run(apply_overrides(load_preset("minute", task=TASK, method="drqv2+mem", seed=3), TINY_RUN), RunDir(path))
    return path


class InputRecorder(torch.nn.Module):
    """Agent that records the mask and the brightest pixels of every input."""

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self.agent, self.masks, self.max_pixels = agent, list[tuple[bool, ...]](), list[tuple[int, ...]]()

    def act(self, views: Tensor, mask: Tensor, **options: Any) -> Tensor:
        self.masks.append(tuple(mask[0].tolist()))
        self.max_pixels.append(tuple(views[0].flatten(1).amax(1).tolist()))
        action: Tensor = self.agent.act(views, mask, **options)
        return action

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "agent" else getattr(self.agent, name)


def test_the_policy_sees_exactly_the_cameras_of_each_subset(run_path: Path) -> None:
    with RunPlayer(run_path) as player:
        recorder: Any = InputRecorder(player.agent)
        player.agent = recorder
        for subset in list_subsets(player.cameras)[1:]:
            recorder.masks.clear()
            recorder.max_pixels.clear()
            player.play(episodes=1, cameras=subset)
            expected = tuple(camera in subset for camera in CAMERAS)
            assert set(recorder.masks) == {expected}
            assert all(
                (pixel > 0) == is_present
                for row in recorder.max_pixels
                for pixel, is_present in zip(row, expected, strict=True)
            )


def test_without_cameras_actions_are_random_and_equal_for_a_seed(run_path: Path) -> None:
    with RunPlayer(run_path) as player:
        recorder: Any = InputRecorder(player.agent)
        player.agent = recorder
        first, second = (player.play(episodes=6, cameras=()).evaluation.returns for _ in range(2))
    assert first == second
    assert not recorder.masks
    spec, representation = ActionSpec(3, discrete=False), recorder.agent.representation
    actions = torch.cat(
        [
            RandomPolicy(representation, spec, seed=1).act(
                torch.zeros(8, 1), torch.ones(8, 1), step=step, explore=False
            )
            for step in range(500)
        ]
    )
    assert actions.shape == (4_000, 3)
    assert actions.abs().max() <= 1
    assert actions.mean(0).abs().max() < 0.03
    assert actions.std(0) == pytest.approx([3**-0.5] * 3, abs=0.02)
    discrete_actions = RandomPolicy(representation, ActionSpec(4, discrete=True), seed=1).act(
        torch.zeros(4_000, 1), torch.ones(1, 1), step=0, explore=False
    )
    assert discrete_actions.bincount().min() > 900


def test_the_report_has_every_subset_fault_and_time(run_path: Path) -> None:
    log: list[str] = []
    with RunPlayer(run_path) as player:
        report = measure_cameras(player, episodes=2, log=log.append)
        full_returns = player.play(episodes=2).evaluation.returns
    assert list(report.returns) == [(), ("upright",), ("lying",), CAMERAS]
    assert report.returns[CAMERAS].tolist() == full_returns
    assert set(report.fault_returns) == {(camera, kind) for camera in CAMERAS for kind in FAULT_KINDS}
    assert report.act_ms > 0
    assert set(report.act_ms_without) == set(CAMERAS)
    assert log[0] == "no camera: 2 episodes"
    assert log[-1] == "lying late: 2 episodes"
    assert len(log) == 4 + 8
    np.testing.assert_array_equal(report.get_losses("lying"), report.returns[CAMERAS] - report.returns[("upright",)])


def test_the_command_prints_tables_and_draws_them(
    run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure_path = tmp_path / "cameras.png"
    arguments = ["cameras", str(run_path), "--episodes", "2", "--no-faults"]
    assert main([*arguments, "--out", str(figure_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == f"written to {figure_path}"
    for text in ("no camera", "upright", "lying", "Shapley value", "lost without it", " ms"):
        assert text in captured.out
    assert "black" not in captured.out
    assert "upright: 2 episodes" in captured.err
    assert figure_path.read_bytes()[:4] == b"\x89PNG"
    assert main([*arguments, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert [subset["cameras"] for subset in report["subsets"]] == [[], ["upright"], ["lying"], ["upright", "lying"]]
    total = sum(mean for mean, _, _ in report["shapley"].values())
    assert total == pytest.approx(np.mean(report["subsets"][-1]["returns"]) - np.mean(report["subsets"][0]["returns"]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--episodes", "0"], "episodes must be at least 1, got 0"),
        (["--episodes", "1", "--no-faults", "--out", "cameras.exe"], "expected a file that ends with .png"),
    ],
)
def test_invalid_options_are_one_line(
    options: list[str], reason: str, run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cameras", str(run_path), *options]) == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_the_figure_of_five_cameras_shows_losses(tmp_path: Path) -> None:
    cameras = tuple("abcde")
    report = CameraReport(
        task="toy",
        method="sac+mem",
        frames=1,
        cameras=cameras,
        returns={subset: np.array([float(len(subset)), 1.0]) for subset in list_subsets(cameras)},
        fault_returns={},
        act_ms=1.0,
        act_ms_without={},
    )
    assert report.shapley_values is None
    draw_cameras(tmp_path / "cameras.svg", [report], ["toy"])
    assert "return lost without the camera" in (tmp_path / "cameras.svg").read_text()


@pytest.mark.parametrize("sign", [-1, 1])
def test_colors_of_faults_start_at_zero_as_bars_do(sign: int) -> None:
    report = CameraReport(
        task="toy",
        method="sac+mem",
        frames=1,
        cameras=("a",),
        returns={(): np.array([50.0 * sign]), ("a",): np.array([49.0 * sign])},
        fault_returns={("a", kind): np.array([49.5 * sign]) for kind in FAULT_KINDS},
        act_ms=1.0,
        act_ms_without={},
    )
    axes = Figure().subplots()
    camera_figure._draw_faults(axes, report)
    assert 0 in axes.images[0].get_clim()
