"""A run of many actors by the command, on real Ray: actors die and hang, all of them at once, and the learner too."""

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
IMPATIENT = (
    "-c",
    "import sys; from manyview.scale import ray_runtime; ray_runtime.RESULT_TIMEOUT_S = 30.0; "
    "from manyview.cli.main import main; sys.exit(main())",
)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
TEMPORARY = Path(gettempdir())
OPTIONS = [
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


class Learner:
    def __init__(
        self, folder: Path, task: str = "make_hanging_env", *settings: str, python: Sequence[str] = MANYVIEW
    ) -> None:
        self.folder = folder
        with (folder / "said.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *python, "train", f"tests.support.hanging_envs:{task}", *OPTIONS, *settings],
                cwd=folder,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "HANG": str(folder / "hang")},
            )

    def records(self, kind: str) -> list[dict[str, Any]]:
        file = self.folder / "run" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def actors(self) -> list[int]:
        return [pid for pid, name in find_descendants(self.process.pid).items() if BUSY_ACTOR_NAME in name]

    def until(self, reached: Callable[[], object]) -> None:
        deadline_s = monotonic() + 300
        while not reached():
            assert self.process.poll() is None, (self.folder / "said.log").read_text()
            assert monotonic() < deadline_s, (self.folder / "said.log").read_text()
            sleep(0.05)

    def episodes(self) -> int:
        return len(self.records("episode"))

    def warnings(self) -> str:
        return "\n".join(record["text"] for record in self.records("warning"))


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Learner]:
    found = Learner(tmp_path)
    yield found
    found.process.kill()
    found.process.wait(timeout=60)


def wait_for_the_end_of(processes: list[int], *, seconds: float) -> None:
    gone_by_s = monotonic() + seconds
    while any(map(is_alive, processes)):
        assert monotonic() < gone_by_s, "processes are left behind"
        sleep(0.1)


@pytest.mark.slow
@pytest.mark.attack("actors and the learner are killed or hang: actors are replaced, and the same command resumes")
@pytest.mark.quality("L1")
@pytest.mark.quality("L2")
@pytest.mark.quality("L3")
@pytest.mark.quality("L4")
@pytest.mark.quality("D4")
@pytest.mark.long
def test_a_run_survives_its_actors_and_itself(tmp_path: Path, learner: Learner) -> None:
    shared_before = set(SHARED_MEMORY.iterdir())
    learner.until(lambda: learner.episodes() > 10)

    dead = learner.actors()[0]  # L1: one dies
    os.kill(dead, signal.SIGKILL)
    learner.until(lambda: "is replaced: The actor died" in learner.warnings())
    before = learner.episodes()
    learner.until(lambda: len(learner.actors()) == 2 and learner.episodes() > before + 5)

    (tmp_path / "hang").touch()  # L2 and L3: all hang in a step, and everybody who comes after them too
    learner.until(lambda: "no chunk within" in learner.warnings())
    learner.until(lambda: "all due updates are done" in learner.warnings())
    (tmp_path / "hang").unlink()
    before = learner.episodes()
    learner.until(lambda: learner.episodes() > before + 5)

    learner.until(lambda: (tmp_path / "run" / "checkpoints" / "000000500").exists())
    ours = [
        pid
        for pid, name in find_descendants(learner.process.pid).items()
        if "RemoteCollector" in name or "Shard" in name
    ]
    assert len(ours) >= 3  # one may just be about to be replaced
    learner.process.send_signal(signal.SIGKILL)  # L4
    learner.process.wait(timeout=60)
    wait_for_the_end_of(ours, seconds=10)

    again = Learner(tmp_path)
    assert again.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    (resumed,) = again.records("resume")
    end = again.records("end")[-1]
    assert (resumed["resume_mode"], end["state"]) == ("async", "finished")
    assert end["frames"] == end["steps"] == FRAMES
    # The preset's 300 frames without updates, then one for each step: neither a burst nor a gap, whatever happened.
    assert end["updates"] == FRAMES - 300 + 1
    kept = json.loads((tmp_path / "run" / "checkpoints" / f"{FRAMES:09d}" / "state.json").read_text())
    taken = sum(shard["senders"]["transitions"] for shard in kept["shards"])
    waiting = sum(steps for steps, _ in kept["pending"]["chunks"])
    assert taken == end["steps"] + waiting  # whatever is in the replay was learned from or will be, once
    assert set(SHARED_MEMORY.iterdir()) <= shared_before
    assert "(raylet)" not in (tmp_path / "said.log").read_text()  # we have said it in a line


@pytest.mark.long
@pytest.mark.quality("L1")
def test_whoever_survives_delivers_as_before_and_the_killed_are_soon_back(figure: Figure) -> None:
    from benchmarks.actors import measure_kills  # and with it Ray

    share, back_s = measure_kills()
    figure(share, "share of the survivors'")
    figure(back_s, "seconds until back")


@pytest.mark.long
def test_a_run_whose_actors_cannot_begin_ends_with_the_reason(tmp_path: Path) -> None:
    learner = Learner(tmp_path, task="make_env_outside_actors")
    assert learner.process.wait(timeout=200) == 1
    *_, last = (tmp_path / "said.log").read_text().splitlines()
    assert last == "no actor can start: RuntimeError: the licence of the simulator is taken"


@pytest.mark.long
def test_a_run_whose_every_chunk_is_refused_ends_with_the_reason(tmp_path: Path) -> None:
    learner = Learner(tmp_path, "make_hanging_env", "scale.reward_high=-1")
    assert learner.process.wait(timeout=200) == 1
    *_, last = (tmp_path / "said.log").read_text().splitlines()
    assert last.startswith("all chunks of all actors are rejected. Last reason: invalid rewards")


@pytest.mark.long
@pytest.mark.quality("L4")
@pytest.mark.quality("D3")
def test_a_damaged_segment_of_a_shard_costs_one_checkpoint(tmp_path: Path) -> None:
    learner, checkpoints = Learner(tmp_path), tmp_path / "run" / "checkpoints"
    learner.until(lambda: (checkpoints / "000001000").exists())
    family = list(find_descendants(learner.process.pid))
    learner.process.kill()
    learner.process.wait(timeout=60)
    wait_for_the_end_of(family, seconds=90)  # two of Ray's own look for it once a minute only
    flip_bit(max((tmp_path / "run" / "replay" / "shard1").glob("*.segment")))
    again = Learner(tmp_path)
    assert again.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    (resumed,) = again.records("resume")
    assert resumed["frames"] == 500
    assert "checksum" in again.warnings()


@pytest.mark.long
@pytest.mark.attack("a shard that dies ends the run with a line, and the same command resumes")
def test_a_shard_that_dies_ends_the_run_with_a_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.until(lambda: (tmp_path / "run" / "checkpoints" / "000000500").exists())
    os.kill(next(pid for pid, name in find_descendants(learner.process.pid).items() if "Shard" in name), signal.SIGKILL)
    assert learner.process.wait(timeout=60) == 1
    said = (tmp_path / "said.log").read_text()
    assert "Traceback" not in said
    assert "The actor died" in said.splitlines()[-1]
    again = Learner(tmp_path)
    assert again.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    assert again.records("end")[-1]["frames"] == FRAMES


HUNG = "a shard that hangs is named within a deadline, and a stop that is requested meanwhile leaves within seconds"


@pytest.mark.long
@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
@pytest.mark.parametrize("signalled", [True, False])
def test_a_shard_that_hangs_is_named_and_the_same_command_goes_on(
    tmp_path: Path, figure: Figure, *, signalled: bool
) -> None:
    learner = Learner(tmp_path, python=MANYVIEW if signalled else IMPATIENT)
    with kill_on_exit(learner.process):
        learner.until(lambda: (tmp_path / "run" / "checkpoints" / "000000500").exists())
        family = find_descendants(learner.process.pid)
        os.kill(next(pid for pid, name in family.items() if "Shard" in name), signal.SIGSTOP)
        sleep(2.0)
        asked_s = monotonic()
        if signalled:
            learner.process.send_signal(signal.SIGTERM)
        assert learner.process.wait(timeout=60) == 1
        seconds = monotonic() - asked_s
    *_, last = (tmp_path / "said.log").read_text().splitlines()
    assert re.match(r"replay shard [01] does not answer: expected a reply within (4|30) s", last)
    assert ("so no checkpoint of this moment is written" in last) == signalled
    assert last.endswith("repeat the command to resume from the newest checkpoint")
    wait_for_the_end_of(list(family), seconds=10)
    if signalled:
        figure(seconds, "s from SIGTERM")
    again = Learner(tmp_path)
    with kill_on_exit(again.process):
        assert again.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    assert again.records("end")[-1]["frames"] == FRAMES


PRIVATE = "another user of the machine can neither list, read nor write the files of the Ray that a run starts"


@pytest.mark.long
@pytest.mark.attack(PRIVATE)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_the_files_of_a_ray_of_our_own_are_closed_to_others_and_gone_with_it(tmp_path: Path) -> None:
    before = set(TEMPORARY.glob("manyview-*"))
    learner = Learner(tmp_path)
    with kill_on_exit(learner.process):
        learner.until(lambda: learner.episodes() > 3)
        (folder,) = (path for path in set(TEMPORARY.glob("manyview-*")) - before if is_of(path, learner.process.pid))
        session = (folder / "r" / "session_latest").resolve()
        assert (session / "sockets" / "raylet").is_socket()
        assert len(str(session / "sockets" / "plasma_store")) <= 107
        assert try_as_nobody(folder) == ""
        stores = {line.split(maxsplit=5)[-1] for line in maps(learner.process.pid) if f" {SHARED_MEMORY}/" in line}
        assert stores
        assert all(name.endswith("(deleted)") for name in stores)  # no name, so nobody else can open it
    assert folder.exists()
    again = Learner(tmp_path)
    with kill_on_exit(again.process):
        again.until(lambda: not folder.exists())
        assert again.process.wait(timeout=200) == 0, (tmp_path / "said.log").read_text()
    assert not any(is_of(path, again.process.pid) for path in TEMPORARY.glob("manyview-*"))


def is_of(folder: Path, pid: int) -> bool:
    """Whether a process has started the Ray of a folder; other tests may have theirs beside it."""
    return any(path.name.endswith(f"_{pid}") for path in (folder / "r").glob("session_*"))


def maps(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


@pytest.mark.long
def test_a_ray_of_our_own_is_reached_from_this_machine_only_whoever_imported_it_before() -> None:
    found = subprocess.run(
        [sys.executable, "-c", ADDRESS], capture_output=True, text=True, check=True, timeout=120, env={**os.environ}
    )
    assert found.stdout.split() == ["127.0.0.1"]


ADDRESS = """
import ray
from manyview.scale.cluster import connect
with connect(None):
    print(*{node["NodeManagerAddress"] for node in ray.nodes()})
"""
