"""Kill runs repeatedly, restart them with the same command, and compare them with an uninterrupted run.

    python -m benchmarks.kills --kills 200

A third of the kills hit a save, before or in the middle of one of its file operations. The others come from outside at
random moments. Each finished run is compared bit for bit with the reference: parameters, targets, optimizer moments,
discriminator, generators, replay buffer with its actions, environment, counters, and all records without their seconds.
Each run appends a line to the results. Lines that exist count, so the same command continues an interrupted benchmark.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from signal import SIGKILL
from time import perf_counter, sleep
from typing import Any

from benchmarks.launcher import COUNT_ONLY, COUNTED, ExitResult, Launcher, Request
from benchmarks.run_comparison import compare_runs
from manyview.training import RunDir

TINY = {
    "schedule.frames": 120,
    "schedule.random_steps": 20,
    "schedule.seed_frames": 30,
    "replay.capacity": 80,
    "replay.batch_size": 8,
    "evaluation.every_frames": 60,
    "evaluation.episodes": 1,
    "evaluation.video": False,
    "logging.every_steps": 5,
    "logging.checkpoint_every_frames": 15,
    "logging.keep_replay": True,
    "logging.tensorboard": False,
    "rollout.envs": 4,
    "rollout.steps": 5,
    "agent.hidden": 16,
    "representation.latent_dim": 4,
}
TINY_PPO = {"agent.batch_size": 8, "agent.epochs": 2}
FRAMES = ("schedule.frames", "schedule.seed_frames", "evaluation.every_frames", "logging.checkpoint_every_frames")
DMC_REPEAT = 20
MAX_SHARE = 0.4
"""Share of the reference run's time, or file operations, within which a process is killed: a run takes several."""


@dataclass(frozen=True)
class Case:
    task: str
    method: str
    seed: int = 1

    def command(self, out: Path) -> list[str]:
        settings = TINY | (TINY_PPO if self.method.startswith("ppo+") else {})
        if self.task.startswith("dmc/"):
            settings |= {name: TINY[name] * DMC_REPEAT for name in FRAMES} | {"env.action_repeat": DMC_REPEAT}
        chosen = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        names = ["--method", self.method, "--preset", "minute", "--seed", str(self.seed), "--out", str(out)]
        return ["train", self.task, *names, "--set", *chosen]


CASES = [
    Case(task, method)
    for task in ("toy/hidden_goal_continuous", "dmc/ball_in_cup_catch")
    for method in ("drqv2+mem", "sac+mem")
]
CASES.append(Case("toy/hidden_goal", "ppo+mem"))


@dataclass(frozen=True)
class ReferenceRun:
    """Uninterrupted run."""

    case: Case
    run_dir: RunDir
    seconds: float
    operations: int


def run_reference(case: Case, path: Path, launcher: Launcher) -> ReferenceRun:
    start_s = perf_counter()
    ended = launcher.start(replace(_make_request(case, path), kill_at=COUNT_ONLY)).wait()
    assert ended.status == 0, ended.output
    operations = int(ended.output.removesuffix(f" {COUNTED}\n").split()[-1])
    return ReferenceRun(case, RunDir(path), perf_counter() - start_s, operations)


def run_by_command_line(case: Case, path: Path) -> RunDir:
    """Run `python -m manyview` in a new process, without the launcher."""
    subprocess.run(
        [sys.executable, "-m", "manyview", *case.command(path)], check=True, stdout=subprocess.DEVNULL, timeout=600
    )
    return RunDir(path)


def run_with_kills(
    reference: ReferenceRun, path: Path, launcher: Launcher, random: Random, *, kills: int
) -> tuple[int, int]:
    """Run to the end through at most `kills` kills; return the number of kills and of those inside a save."""
    deaths = [0, 0]
    while sum(deaths) < kills:
        inside_a_save = deaths[True] < 0.4 * (sum(deaths) + 1)  # outside kills may hit a save too
        ended = _run_until_killed(reference, path, launcher, random, inside_a_save=inside_a_save)
        if not ended.was_killed:
            assert ended.status == 0, ended.output
            break
        deaths[inside_a_save] += 1
    else:
        ended = launcher.start(_make_request(reference.case, path)).wait()
        assert ended.status == 0, ended.output
    return sum(deaths), deaths[True]


def _run_until_killed(
    reference: ReferenceRun, path: Path, launcher: Launcher, random: Random, *, inside_a_save: bool
) -> ExitResult:
    request = _make_request(reference.case, path)
    if inside_a_save:
        return launcher.start(replace(request, kill_at=random.randint(1, int(reference.operations * MAX_SHARE)))).wait()
    running = launcher.start(request)
    if random.random() < 0.8:  # otherwise the kill may come before the first output
        running.wait_for_output()
    sleep(random.uniform(0, reference.seconds * MAX_SHARE))
    running.send(SIGKILL)
    return running.wait()


def _make_request(case: Case, path: Path) -> Request:
    run = RunDir(path)
    saves = [str(run.checkpoints_dir), str(run.replay_dir)]
    return Request(case.command(path), output=f"{path}.said", watched_dirs=saves)


def _read_lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in total, over all cases")
    parser.add_argument("--kills-per-run", type=int, default=10)
    parser.add_argument("--results", type=Path, default=Path("results/kills.jsonl"))
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, Launcher() as launcher, args.results.open("a") as results:
        for case in CASES:
            before = _read_lines(args.results)
            done = [line for line in before if (line["task"], line["method"]) == (case.task, case.method)]
            for line in _run_rounds(case, done, args.kills // len(CASES), args.kills_per_run, Path(scratch), launcher):
                print(json.dumps(line), file=results, flush=True)
                print(json.dumps(line), flush=True)
    return int(any(line["differences"] for line in _read_lines(args.results)))


def _run_rounds(
    case: Case, done: list[dict[str, Any]], wanted: int, max_kills: int, scratch: Path, launcher: Launcher
) -> Iterator[dict[str, Any]]:
    kills, number = sum(line["kills"] for line in done), len(done)
    if kills >= wanted:
        return
    name = f"{case.task.replace('/', '-')}-{case.method}"
    reference = run_reference(case, scratch / name, launcher)
    mismatches = compare_runs(reference.run_dir, run_by_command_line(case, scratch / f"{name}-command"))
    assert not mismatches, f"two uninterrupted runs differ: {mismatches}"
    while kills < wanted:
        start_s, path = perf_counter(), scratch / f"{name}-{number}"
        random = Random(number)  # noqa: S311
        died, in_saves = run_with_kills(reference, path, launcher, random, kills=min(max_kills, wanted - kills))
        differences = compare_runs(reference.run_dir, RunDir(path))
        seconds = round(perf_counter() - start_s, 1)
        counts = {"round": number, "kills": died, "inside a save": in_saves}
        yield {
            "task": case.task,
            "method": case.method,
            **counts,
            "differences": differences,
            "seconds": seconds,
        }
        kills, number = kills + died, number + 1


if __name__ == "__main__":
    sys.exit(main())
