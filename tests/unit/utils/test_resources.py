"""Memory and disk: predicted sizes, free space, and refusal of what does not fit."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from manyview.data import (
    InsufficientSpaceError,
    ReplayBuffer,
    Sampler,
    check_memory,
    check_replay_fits,
    compute_batch_bytes,
    compute_buffer_bytes,
    compute_step_bytes,
    get_free_disk_bytes,
    get_free_memory_bytes,
)
from manyview.envs import View
from quality.plugin import Figure

GB = 10**9
THREE_VIEWS = (View("side", 84, 84), View("back", 84, 84), View("cut", 84, 84, derived_from="side"))


@pytest.mark.quality("P7")
def test_three_views_take_little_more_than_two_cameras(figure: Figure) -> None:
    replay = ReplayBuffer(THREE_VIEWS, action_shape=(6,), capacity=100, frame_stack=3)
    assert replay.nbytes == 100 * compute_step_bytes(THREE_VIEWS, (6,))
    figure(replay.nbytes / 100 / 1000, "kB in memory")


FILL_SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
from manyview.data import ReplayBuffer, compute_buffer_bytes
from manyview.envs import MASK
from tests.unit.utils.test_resources import THREE_VIEWS

def get_resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

side, back = (np.random.default_rng(seed).integers(256, size=(84, 84, 3), dtype=np.uint8) for seed in range(2))
observation = {"side": side, "back": back, "cut": side, MASK: np.ones(3, np.int8)}
before = get_resident_bytes()
replay = ReplayBuffer(THREE_VIEWS, action_shape=(6,), capacity=5000, frame_stack=3)
for _ in range(6000):
    replay.start_episode(observation)
print((get_resident_bytes() - before) / compute_buffer_bytes(THREE_VIEWS, action_shape=(6,), capacity=5000))
"""


@pytest.mark.quality("E4")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory in use from /proc")
def test_a_full_replay_takes_the_memory_that_was_predicted(figure: Figure) -> None:
    """It is measured in a subprocess, where nothing else takes or frees memory."""
    result = subprocess.run(
        [sys.executable, "-c", FILL_SCRIPT], capture_output=True, text=True, check=True, timeout=300
    )
    figure(abs(float(result.stdout) - 1), "prediction off by")


def test_a_replay_on_disk_allocates_its_space_at_once(tmp_path: Path) -> None:
    """A disk that becomes full under a mapped file would kill the process."""
    before = os.statvfs(tmp_path)
    replay = ReplayBuffer(THREE_VIEWS, action_shape=(1,), capacity=5000, frame_stack=3, directory=tmp_path)
    after = os.statvfs(tmp_path)
    assert replay.nbytes == compute_buffer_bytes(THREE_VIEWS, action_shape=(1,), capacity=5000)
    # Other processes use the disk too.
    assert (before.f_bfree - after.f_bfree) * before.f_frsize > 0.5 * replay.nbytes


def test_the_memory_of_batches_is_as_predicted() -> None:
    replay = ReplayBuffer(THREE_VIEWS, action_shape=(6,), capacity=200, frame_stack=3)
    replay.start_episode(
        {
            "side": np.zeros((84, 84, 3), np.uint8),
            "back": np.zeros((84, 84, 3), np.uint8),
            "cut": np.zeros((84, 84, 3), np.uint8),
            "mask": np.ones(3, np.int8),
        }
    )
    sampler = Sampler(replay, batch_size=4, n_step=1, discount=0.9, seed=0)
    num_bytes = sum(buffers.views.nbytes + buffers.next_views.nbytes for buffers in sampler._buffers)
    assert num_bytes == compute_batch_bytes(THREE_VIEWS, frame_stack=3, batch_size=4)


@pytest.mark.quality("E4")
def test_a_replay_that_does_not_fit_in_memory_is_refused() -> None:
    free = get_free_memory_bytes()
    if free is None:
        pytest.skip("the free memory is unknown on this machine")
    capacity = math.ceil(free / compute_step_bytes(THREE_VIEWS, (6,)))
    with pytest.raises(
        InsufficientSpaceError, match=r"needs .* GB of memory, and .* GB are free: at most .* store it in a directory"
    ):
        ReplayBuffer(THREE_VIEWS, action_shape=(6,), capacity=capacity, frame_stack=3)


@pytest.mark.quality("E4")
def test_a_replay_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    capacity = math.ceil(get_free_disk_bytes(tmp_path) / compute_step_bytes(THREE_VIEWS, (6,)))
    with pytest.raises(
        InsufficientSpaceError, match=r"are free in .*replay: at most [\d,]+ steps fit\. .* directory on another disk"
    ):
        ReplayBuffer(THREE_VIEWS, action_shape=(6,), capacity=capacity, frame_stack=3, directory=tmp_path / "replay")
    assert not (tmp_path / "replay").exists()


def write_memory_files(root: Path, *, available_kb: int, files: dict[str, str]) -> Path:
    """Write the files in which Linux reports its memory below `root`; return `root`."""
    for name, text in {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {available_kb} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/memory.max": f"{8 * GB}\n",
    "sys/fs/cgroup/job/memory.current": f"{5 * GB}\n",
    "sys/fs/cgroup/job/memory.stat": f"anon 77\ninactive_file {2 * GB}\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": f"{4 * GB}\n",
}
V1 = {
    "proc/self/cgroup": "9:cpu:/\n4:cpuset,memory:/docker/a1\n0::/\n",
    "sys/fs/cgroup/memory/docker/a1/memory.limit_in_bytes": f"{3 * GB}\n",
    "sys/fs/cgroup/memory/docker/a1/memory.usage_in_bytes": f"{GB}\n",
    "sys/fs/cgroup/memory/docker/a1/memory.stat": f"total_inactive_file {GB // 2}\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{7 * GB}\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 16 * GB),  # no control groups
        ({"proc/self/cgroup": "0::/\n"}, 16 * GB),  # the group of everything has no limit
        (V2, 5 * GB),  # the limit is one level up, and caches can be taken back
        (V1, 5 * GB // 2),
    ],
)
def test_free_memory_is_the_minimum_of_machine_and_containers(files: dict[str, str], free: int, tmp_path: Path) -> None:
    assert get_free_memory_bytes(write_memory_files(tmp_path, available_kb=16 * GB // 1024, files=files)) == free


def test_a_container_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    files = {**V2, "sys/fs/cgroup/job/memory.current": f"{11 * GB}\n"}
    assert get_free_memory_bytes(write_memory_files(tmp_path, available_kb=10**6, files=files)) == 0


def test_nothing_is_refused_if_the_free_memory_is_unknown(tmp_path: Path) -> None:
    assert get_free_memory_bytes(tmp_path) is None
    check_replay_fits(10**18, capacity=10, directory=None, root=tmp_path)


def test_an_error_names_the_steps_that_would_fit(tmp_path: Path) -> None:
    root = write_memory_files(tmp_path, available_kb=10 * GB // 1024, files={})
    check_replay_fits(7 * GB, capacity=1000, directory=None, other_memory_bytes=2 * GB, root=root)
    with pytest.raises(InsufficientSpaceError) as excinfo:
        check_replay_fits(20 * GB, capacity=1000, directory=None, other_memory_bytes=2 * GB, root=root)
    assert str(excinfo.value) == (
        "a replay buffer of 1,000 steps needs 20.0 GB of memory beside 2.0 GB for the rest, and 10.0 GB are free: at "
        "most 375 steps fit. Lower the capacity, or store it in a directory on a disk."
    )
    with pytest.raises(InsufficientSpaceError, match=r"needs 10\.5 GB of memory beside the replay buffer on disk"):
        check_replay_fits(GB, capacity=1000, directory=tmp_path, other_memory_bytes=21 * GB // 2, root=root)
    with pytest.raises(InsufficientSpaceError, match="not one step fits"):
        check_replay_fits(20 * GB, capacity=1, directory=None, other_memory_bytes=2 * GB, root=root)


def test_an_error_of_check_memory_has_the_given_words(tmp_path: Path) -> None:
    root = write_memory_files(tmp_path, available_kb=10 * GB // 1024, files={})
    check_memory(9 * GB, what="it", remedy="do not", root=root)
    with pytest.raises(
        InsufficientSpaceError,
        match=r"^learning from 64 games needs 11\.0 GB of memory, and 10\.0 GB are free: take fewer$",
    ):
        check_memory(11 * GB, what="learning from 64 games", remedy="take fewer", root=root)


def test_the_free_disk_of_a_missing_folder_is_that_of_its_parent(tmp_path: Path) -> None:
    assert get_free_disk_bytes(tmp_path / "runs" / "today") == pytest.approx(get_free_disk_bytes(tmp_path), rel=0.2)
