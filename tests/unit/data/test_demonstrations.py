"""Demonstration datasets: exact round trip, compatibility with the run, mixed batches."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyview.data import ReplayBuffer, Sampler
from manyview.data.demonstrations import (
    MANIFEST_FILE,
    DemonstrationsManifest,
    DemonstrationWriter,
    load_demonstrations,
    read_manifest,
)
from manyview.data.mixed_sampler import MixedSampler
from manyview.data.n_step import find_oldest_start
from manyview.envs import View
from manyview.envs.views import MASK, Observation, StateVector

VIEWS = (View("front", 4, 6), View("wrist", 4, 6))
JOINTS = (StateVector("joints", 2),)


def make_observation(step: int, *, has_wrist: bool = True) -> Observation:
    """Return an observation whose values encode its step."""
    image = np.full((4, 6, 3), step % 256, np.uint8)
    image[0, 0, 0] = step // 256
    mask = np.array([1, has_wrist], np.int8)
    joints = np.array([step, -step], np.float32)
    return {"front": image, "wrist": (image + 1) * mask[1].astype(np.uint8), "joints": joints, MASK: mask}


def write_episodes(folder: Path, lengths: list[int]) -> tuple[DemonstrationsManifest, ReplayBuffer]:
    """Write episodes of these lengths, and return them in a replay buffer too."""
    writer = DemonstrationWriter(folder, VIEWS, action_size=3, state_vectors=JOINTS)
    replay = ReplayBuffer(
        VIEWS, action_shape=(3,), capacity=sum(lengths) + 2 * len(lengths) + 2, frame_stack=2, state_vectors=JOINTS
    )
    step = 0
    for length in lengths:
        writer.start_episode(make_observation(step))
        replay.start_episode(make_observation(step))
        for index in range(length):
            step += 1
            action = np.array([0.5, -0.25, np.cos(step)], np.float32)
            arguments: tuple[Any, ...] = (
                action,
                step / 7,
                index == length - 1,
                make_observation(step, has_wrist=step % 3 > 0),
            )
            writer.add(*arguments)
            replay.add(*arguments)
        step += 1
    return writer.close({"fps": 30}), replay


def load_replay(folder: Path, **changes: Any) -> ReplayBuffer:
    options: dict[str, Any] = {"views": VIEWS, "action_size": 3, "frame_stack": 2, "state_vectors": JOINTS, **changes}
    return load_demonstrations(folder, **options).replay


def make_sampler(replay: ReplayBuffer, batch_size: int, *, seed: int = 0, n_step: int = 3) -> Sampler:
    return Sampler(replay, batch_size=batch_size, n_step=n_step, discount=0.9, seed=seed)


@pytest.mark.parametrize("lengths", [[1], [5, 3], [511], [512], [513], [700, 900, 2]])
def test_every_step_is_loaded_from_any_number_of_segments(tmp_path: Path, lengths: list[int]) -> None:
    manifest, replay = write_episodes(tmp_path, lengths)
    assert (manifest.episodes, manifest.transitions) == (len(lengths), sum(lengths))
    assert manifest.steps == sum(lengths) + len(lengths)
    assert max(ref.end - ref.start for ref in manifest.segments) <= 512
    loaded, steps = load_replay(tmp_path), manifest.steps
    assert np.array_equal(loaded.steps[:steps], replay.steps[:steps])
    for loaded_ring, ring in zip(loaded.frames, replay.frames, strict=True):
        assert np.array_equal(loaded_ring[:steps], ring[:steps])
    assert loaded.inserted == steps + 1
    assert not loaded.steps["acted"][steps:].any()


@pytest.mark.parametrize("lengths", [[6, 4], [3]])
def test_every_transition_is_sampled_including_the_last(tmp_path: Path, lengths: list[int]) -> None:
    write_episodes(tmp_path, lengths)
    sampler = make_sampler(load_replay(tmp_path), 64)
    counts = Counter(int(index) for _ in range(20) for index in sampler.sample().indices)
    expected = [
        start + index for start, length in zip([0, lengths[0] + 1], lengths, strict=False) for index in range(length)
    ]
    assert sorted(counts) == expected
    assert max(counts.values()) < 2 * min(counts.values())


@pytest.mark.parametrize("steps", [3, 700, 5000])
def test_no_step_is_too_old_to_be_sampled(tmp_path: Path, steps: int) -> None:
    manifest, _ = write_episodes(tmp_path, [steps])
    assert find_oldest_start(load_replay(tmp_path), manifest.steps + 1) == 0


def test_a_mixed_batch_has_replay_rows_then_demonstrations_with_negative_indices(tmp_path: Path) -> None:
    _, replay = write_episodes(tmp_path / "own", [20, 20])
    write_episodes(tmp_path / "demos", [9, 9])
    demonstrations = load_replay(tmp_path / "demos")
    mixed_sampler = MixedSampler(
        make_sampler(replay, 6), make_sampler(demonstrations, 2, seed=1), num_demonstrated=demonstrations.inserted
    )
    replay_sampler, demonstration_sampler = make_sampler(replay, 6), make_sampler(demonstrations, 2, seed=1)
    for _ in range(3):
        batch, first, second = mixed_sampler.sample(), replay_sampler.sample(), demonstration_sampler.sample()
        assert torch.equal(batch.views, torch.cat([first.views, second.views]))
        assert torch.equal(batch.reward_ext, torch.cat([first.reward_ext, second.reward_ext]))
        assert batch.vectors is not None
        assert batch.neighbor_distances is None
        assert batch.indices[:6].tolist() == first.indices.tolist()
        assert batch.indices[6:].tolist() == [-2 - index for index in second.indices.tolist()]
        assert batch.next_indices[6:].tolist() == [-2 - index for index in second.next_indices.tolist()]
    for sampler in (mixed_sampler, replay_sampler, demonstration_sampler):
        sampler.close()


@pytest.mark.parametrize("batches", [0, 1, 4])
def test_a_mixed_sampler_continues_from_its_state(tmp_path: Path, batches: int) -> None:
    _, replay = write_episodes(tmp_path / "own", [20, 20])
    write_episodes(tmp_path / "demos", [149])  # an odd number of steps: a horizon may advance by two
    demonstrations = load_replay(tmp_path / "demos")

    def make_mixed_sampler() -> MixedSampler:
        return MixedSampler(
            make_sampler(replay, 6), make_sampler(demonstrations, 5, seed=1), num_demonstrated=demonstrations.inserted
        )

    sampler, resumed = make_mixed_sampler(), make_mixed_sampler()
    for _ in range(batches):
        sampler.sample()
    resumed.load_state(sampler.get_state())
    for _ in range(3):
        batch, resumed_batch = sampler.sample(), resumed.sample()
        assert torch.equal(batch.indices, resumed_batch.indices)
        assert torch.equal(batch.views, resumed_batch.views)
    sampler.close()
    resumed.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": VIEWS[:1]}, "other views than the run: expected front 4x6x3, got front 4x6x3, wrist 4x6x3"),
        ({"views": (View("front", 4, 6), View("hand", 4, 6))}, "other views than the run: expected front .* hand"),
        ({"views": (VIEWS[1], VIEWS[0])}, "other views than the run"),
        ({"state_vectors": ()}, "other state vectors than the run: expected none, got joints 2"),
        ({"action_size": 2}, "other action size than the run: expected 2, got 3"),
    ],
)
def test_demonstrations_that_do_not_match_the_run_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_episodes(tmp_path, [4])
    with pytest.raises(ValueError, match=message) as excinfo:
        load_replay(tmp_path, **changes)
    assert "Import the dataset again" in str(excinfo.value)


def flip_bit(folder: Path) -> None:
    path = next(folder.glob("*.segment"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_segment(folder: Path) -> None:
    """Replace a segment by a valid one of other demonstrations."""
    write_episodes(folder / "other", [2, 2])  # six steps too
    path = next(folder.glob("*.segment"))
    next((folder / "other").glob("*.segment")).replace(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_bit, "checksum mismatch"),
        (replace_segment, "is not the segment that was written"),
        (lambda folder: next(folder.glob("*.segment")).unlink(), "No such file"),
    ],
)
def test_a_changed_segment_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    write_episodes(tmp_path, [5])
    change(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_replay(tmp_path)


def edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "unsupported format: expected 1, got 2"),
        ({"segments": []}, "invalid segments"),
        ({"segments": [[1, 5, "a" * 64]]}, "invalid segments"),
        ({"segments": [[0, 10**9, "a" * 64]]}, "invalid segment reference"),
        ({"action_size": 0}, "invalid action_size: expected an integer from 1, got 0"),
        ({"action_size": True}, "invalid action_size"),
        ({"views": [{"name": "a"}]}, "missing 'height'"),
        ({"views": [{"name": "a", "height": -1, "width": 1, "channels": 1}]}, "invalid view"),
        ({"views": 3}, "is invalid"),
        ({"source": "\x1b[2J"}, "is invalid"),
    ],
)
def test_an_invalid_manifest_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_episodes(tmp_path, [5])
    edit_manifest(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as excinfo:
        read_manifest(tmp_path)
    assert str(excinfo.value).isprintable()


def test_another_manifest_has_another_checksum(tmp_path: Path) -> None:
    manifest, _ = write_episodes(tmp_path, [5])
    edit_manifest(tmp_path, source={"fps": 15})
    assert read_manifest(tmp_path).sha256 != manifest.sha256


def test_a_folder_without_demonstrations_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="manyview import-dataset"):
        read_manifest(tmp_path)


def test_actions_beyond_the_bounds_are_refused(tmp_path: Path) -> None:
    writer = DemonstrationWriter(tmp_path, VIEWS, action_size=1, state_vectors=JOINTS)
    writer.start_episode(make_observation(0))
    writer.add([1.5], 0.0, False, make_observation(1))
    writer.close({})
    with pytest.raises(ValueError, match=r"expected actions in \[-1, 1\]"):
        load_replay(tmp_path, action_size=1)


def test_demonstrations_without_a_transition_are_refused(tmp_path: Path) -> None:
    writer = DemonstrationWriter(tmp_path, VIEWS, action_size=1, state_vectors=JOINTS)
    writer.start_episode(make_observation(0))
    with pytest.raises(ValueError, match="no transition"):
        writer.close({})
