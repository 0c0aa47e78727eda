"""Runs with actors on real Ray, started by the command: actors, shards and the learner die or hang."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Any

import pytest

from benchmarks.processes import BUSY_ACTOR_NAME, find_descendants, is_alive
from quality.plugin import Figure
from tests.support.file_corruption import flip_bit
from tests.support.processes import kill_on_exit
from tests.unit.utils.test_private_dir import try_as_nobody

pytestmark = pytest.mark.xdist_group("ray")
FRAMES = 1_500
MANYVIEW = ("-m", "manyview")
SHORT_TIMEOUT = (
    "-c",
    "import sys; from manyview.scale import ray_runtime; ray_runtime.RESULT_TIMEOUT_S = 30.0; "
    "from manyview.cli.main import main; sys.exit(main())",
)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
TEMP_DIR = Path(gettempdir())
TRAIN_OPTIONS = [
    *("--method", "drqv2+none", "--preset", "minute", "--out", "run"),
    *("--actors", "2", "--replay-shards", "2", "--set", f"schedule.frames={FRAMES}", "scale.chunk_steps=25"),
    *(
        "scale.deadline_s=4",
        "evaluation.video=false",
        "logging.tensorboard=false",
        "logging.checkpoint_every_frames=500",
    ),
    *("evaluation.every_frames=1500", "agent.std_steps=800"),
]


class LearnerProcess:
    """Process of the command `train` with actors, and its run directory."""

    def __init__(
        self, directory: Path, task: str = "make_hanging_env", *settings: str, python: Sequence[str] = MANYVIEW
    ) -> None:
        self.directory = directory
        with (directory / "said.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *python, "train", f"tests.support.hanging_envs:{task}", *TRAIN_OPTIONS, *settings],
                cwd=directory,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "HANG": str(directory / "hang")},
            )

    def read_records(self, kind: str) -> list[dict[str, Any]]:
        file = self.directory / "run" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def find_actors(self) -> list[int]:
        return [pid for pid, name in find_descendants(self.process.pid).items() if BUSY_ACTOR_NAME in name]

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline_s = monotonic() + 300
        while not condition():
            assert self.process.poll() is None, (self.directory / "said.log").read_text()
            assert monotonic() < deadline_s, (self.directory / "said.log").read_text()
            sleep(0.05)

    def count_episodes(self) -> int:
        return len(self.read_records("episode"))

    def read_warnings(self) -> str:
        return "\n".join(record["text"] for record in self.read_records("warning"))


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[LearnerProcess]:
    """Yield a running learner and kill it on exit."""
    instance = LearnerProcess(tmp_path)
    yield instance
    instance.process.kill()
    instance.process.wait(timeout=60)


def wait_until_dead(pids: list[int], *, timeout_s: float) -> None:
    deadline_s = monotonic() + timeout_s
    while any(map(is_alive, pids)):
        assert monotonic() < deadline_s, "processes are left behind"
        sleep(0.1)


@pytest.mark.slow
@pytest.mark.attack("actors and the learner are killed or hang: actors are replaced, and the same command resumes")
@pytest.mark.quality("L1")
@pytest.mark.quality("L2")
@pytest.mark.quality("L3")
@pytest.mark.quality("L4")
@pytest.mark.quality("D4")
@pytest.mark.long
def test_a_run_survives_deaths_of_its_actors_and_of_the_learner(tmp_path: Path, learner: LearnerProcess) -> None:
    shared_before = set(SHARED_MEMORY.iterdir())
    learner.wait_until(lambda: learner.count_episodes() > 10)

    killed_actor = learner.find_actors()[0]  # L1: an actor dies
    os.kill(killed_actor, signal.SIGKILL)
    learner.wait_until(lambda: "is replaced: The actor died" in learner.read_warnings())
    episodes_before = learner.count_episodes()
    learner.wait_until(lambda: len(learner.find_actors()) == 2 and learner.count_episodes() > episodes_before + 5)

    (tmp_path / "hang").touch()  # L2 and L3: all actors and their replacements hang in a step
    learner.wait_until(lambda: "no chunk within" in learner.read_warnings())
    learner.wait_until(lambda: "all due updates are done" in learner.read_warnings())
    (tmp_path / "hang").unlink()
    episodes_before = learner.count_episodes()
    learner.wait_until(lambda: learner.count_episodes() > episodes_before + 5)

    learner.wait_until(lambda: (tmp_path / "run" / "checkpoints" / "000000500").exists())
    collectors_and_shards = [
        pid
        for pid, name in find_descendants(learner.process.pid).items()
        if "RemoteCollector" in name or "Shard" in name
    ]
    assert len(collectors_and_shards) >= 3  # one may be about to be replaced
    learner.process.send_signal(signal.SIGKILL)  # L4
    learner.process.wait(timeout=60)
    wait_until_dead(collectors_and_shards, timeout_s=10)

    resumed_learner = LearnerProcess(tmp_path)
    assert resumed_learner.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    (resume_record,) = resumed_learner.read_records("resume")
    end = resumed_learner.read_records("end")[-1]
    assert (resume_record["resume_mode"], end["state"]) == ("async", "finished")
    assert end["frames"] == end["steps"] == FRAMES
    # The preset has 300 frames without updates, then one update per step, despite the failures.
    assert end["updates"] == FRAMES - 300 + 1
    state = json.loads((tmp_path / "run" / "checkpoints" / f"{FRAMES:09d}" / "state.json").read_text())
    num_stored = sum(shard["senders"]["transitions"] for shard in state["shards"])
    num_pending = sum(steps for steps, _ in state["pending"]["chunks"])
    assert num_stored == end["steps"] + num_pending  # every stored transition counts once, as a step or as pending
    assert set(SHARED_MEMORY.iterdir()) <= shared_before
    assert "(raylet)" not in (tmp_path / "said.log").read_text()  # manyview reports the failure in one line


@pytest.mark.long
@pytest.mark.quality("L1")
def test_surviving_actors_keep_their_rate_and_killed_ones_are_soon_replaced(figure: Figure) -> None:
    from benchmarks.actors import measure_kills  # imports Ray

    share, replacement_s = measure_kills()
    figure(share, "share of the survivors'")
    figure(replacement_s, "seconds until back")


@pytest.mark.long
def test_a_run_whose_actors_cannot_begin_ends_with_the_reason(tmp_path: Path) -> None:
    learner = LearnerProcess(tmp_path, task="make_env_outside_actors")
    assert learner.process.wait(timeout=200) == 1
    *_, last_line = (tmp_path / "said.log").read_text().splitlines()
    assert last_line == "no actor can start: RuntimeError: the licence of the simulator is taken"


@pytest.mark.long
def test_a_run_whose_every_chunk_is_refused_ends_with_the_reason(tmp_path: Path) -> None:
    learner = LearnerProcess(tmp_path, "make_hanging_env", "scale.reward_high=-1")
    assert learner.process.wait(timeout=200) == 1
    *_, last_line = (tmp_path / "said.log").read_text().splitlines()
    assert last_line.startswith("all chunks of all actors are rejected. Last reason: invalid rewards")


@pytest.mark.long
@pytest.mark.quality("L4")
@pytest.mark.quality("D3")
def test_a_damaged_segment_of_a_shard_costs_one_checkpoint(tmp_path: Path) -> None:
    learner, checkpoints = LearnerProcess(tmp_path), tmp_path / "run" / "checkpoints"
    learner.wait_until(lambda: (checkpoints / "000001000").exists())
    descendants = list(find_descendants(learner.process.pid))
    learner.process.kill()
    learner.process.wait(timeout=60)
    wait_until_dead(descendants, timeout_s=90)  # two processes of Ray check for it only once a minute
    flip_bit(max((tmp_path / "run" / "replay" / "shard1").glob("*.segment")))
    resumed_learner = LearnerProcess(tmp_path)
    assert resumed_learner.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    (resume_record,) = resumed_learner.read_records("resume")
    assert resume_record["frames"] == 500
    assert "checksum" in resumed_learner.read_warnings()


@pytest.mark.long
@pytest.mark.attack("a shard that dies ends the run with a line, and the same command resumes")
def test_a_shard_that_dies_ends_the_run_with_a_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    learner = LearnerProcess(tmp_path)
    learner.wait_until(lambda: (tmp_path / "run" / "checkpoints" / "000000500").exists())
    os.kill(next(pid for pid, name in find_descendants(learner.process.pid).items() if "Shard" in name), signal.SIGKILL)
    assert learner.process.wait(timeout=60) == 1
    output = (tmp_path / "said.log").read_text()
    assert "Traceback" not in output
    assert "The actor died" in output.splitlines()[-1]
    resumed_learner = LearnerProcess(tmp_path)
    assert resumed_learner.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    assert resumed_learner.read_records("end")[-1]["frames"] == FRAMES


HANGING_SHARD = (
    "a shard that hangs is named within a deadline, and a stop that is requested meanwhile leaves within seconds"
)


@pytest.mark.long
@pytest.mark.attack(HANGING_SHARD)
@pytest.mark.quality("L8")
@pytest.mark.parametrize("send_sigterm", [True, False])
def test_a_shard_that_hangs_is_named_and_the_same_command_goes_on(
    tmp_path: Path, figure: Figure, *, send_sigterm: bool
) -> None:
    learner = LearnerProcess(tmp_path, python=MANYVIEW if send_sigterm else SHORT_TIMEOUT)
    with kill_on_exit(learner.process):
        learner.wait_until(lambda: (tmp_path / "run" / "checkpoints" / "000000500").exists())
        descendants = find_descendants(learner.process.pid)
        os.kill(next(pid for pid, name in descendants.items() if "Shard" in name), signal.SIGSTOP)
        sleep(2.0)
        start_s = monotonic()
        if send_sigterm:
            learner.process.send_signal(signal.SIGTERM)
        assert learner.process.wait(timeout=60) == 1
        seconds = monotonic() - start_s
    *_, last_line = (tmp_path / "said.log").read_text().splitlines()
    assert re.match(r"replay shard [01] does not answer: expected a reply within (4|30) s", last_line)
    assert ("so no checkpoint of this moment is written" in last_line) == send_sigterm
    assert last_line.endswith("repeat the command to resume from the newest checkpoint")
    wait_until_dead(list(descendants), timeout_s=10)
    if send_sigterm:
        figure(seconds, "s from SIGTERM")
    resumed_learner = LearnerProcess(tmp_path)
    with kill_on_exit(resumed_learner.process):
        assert resumed_learner.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    assert resumed_learner.read_records("end")[-1]["frames"] == FRAMES


PRIVATE_FILES = "another user of the machine can neither list, read nor write the files of the Ray that a run starts"


@pytest.mark.long
@pytest.mark.attack(PRIVATE_FILES)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_files_of_a_started_ray_are_private_and_removed_after_it(tmp_path: Path) -> None:
    before = set(TEMP_DIR.glob("manyview-*"))
    learner = LearnerProcess(tmp_path)
    with kill_on_exit(learner.process):
        learner.wait_until(lambda: learner.count_episodes() > 3)
        (ray_dir,) = (
            path for path in set(TEMP_DIR.glob("manyview-*")) - before if is_ray_of(path, learner.process.pid)
        )
        session_dir = (ray_dir / "r" / "session_latest").resolve()
        assert (session_dir / "sockets" / "raylet").is_socket()
        assert len(str(session_dir / "sockets" / "plasma_store")) <= 107
        assert try_as_nobody(ray_dir) == ""
        store_names = {
            line.split(maxsplit=5)[-1] for line in read_memory_maps(learner.process.pid) if f" {SHARED_MEMORY}/" in line
        }
        assert store_names
        assert all(name.endswith("(deleted)") for name in store_names)  # without a name, no other user can open it
    assert ray_dir.exists()
    resumed_learner = LearnerProcess(tmp_path)
    with kill_on_exit(resumed_learner.process):
        resumed_learner.wait_until(lambda: not ray_dir.exists())
        assert resumed_learner.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    assert not any(is_ray_of(path, resumed_learner.process.pid) for path in TEMP_DIR.glob("manyview-*"))


def is_ray_of(ray_dir: Path, pid: int) -> bool:
    """Return whether a process started the Ray of a directory; other tests may run theirs."""
    return any(path.name.endswith(f"_{pid}") for path in (ray_dir / "r").glob("session_*"))


def read_memory_maps(pid: int) -> list[str]:
    """Return the memory mappings of a process."""
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


@pytest.mark.long
def test_a_started_ray_is_reachable_from_this_machine_only_even_if_ray_is_imported_before() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ADDRESS_CODE],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ},
    )
    assert result.stdout.split() == ["127.0.0.1"]


ADDRESS_CODE = """
import ray
from manyview.scale.cluster import connect
with connect(None):
    print(*{node["NodeManagerAddress"] for node in ray.nodes()})
"""
