"""Measure the cost of the segment log, of checkpoints and of a resume.

python -m benchmarks.saving log        # kB and ms per step, on frames of DeepMind Control
python -m benchmarks.saving loop       # the training loop with log and checkpoints against without
python -m benchmarks.saving wait       # the learner's wait for a checkpoint with many steps in its replay buffer
python -m benchmarks.saving resume     # the time of a resume and its parts
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
import torch

from manyview import get_views, make
from manyview.config.overrides import apply_overrides
from manyview.data import AsyncWriter, ReplayBuffer, SegmentLog
from manyview.data.segment_format import MAX_SEGMENT_STEPS, Segment, pack_segment
from manyview.data.segment_log import SegmentJob
from manyview.envs import View
from manyview.training import RunDir, load_preset
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.runner import Runner

RUN_SAVES_EVERY_STEPS = 2_500
"""Agent steps between checkpoints in the preset `cpu`: 10,000 frames."""
TASKS = ("ball_in_cup_catch", "cheetah_run", "finger_turn_hard", "pendulum_swingup", "reacher_hard")
QUIET: dict[str, dict[str, Any]] = {
    "evaluation": {"every_frames": 10**9, "video": False},
    "logging": {"tensorboard": False},
}


def record_replay(task: str, *, steps: int, image_size: int = 84) -> ReplayBuffer:
    """Return a replay buffer of random actions, stored with the paper's settings."""
    env = make(f"dmc/{task}", image_size=image_size, frame_stack=1, render_quality="fast")
    replay = ReplayBuffer(get_views(env), action_shape=env.action_space.shape or (), capacity=steps + 10, frame_stack=3)
    actions = np.random.default_rng(0)
    replay.start_episode(env.reset(seed=0)[0])
    for number in range(steps):
        action = actions.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        replay.add(action, float(reward), terminated, observation)
        if terminated or truncated:
            replay.start_episode(env.reset(seed=number)[0])
    env.close()
    return replay


def compute_log_kb_per_step(replay: ReplayBuffer, *, steps: int) -> float:
    """Return the kB per step in segments of the size that the log writes."""
    sizes = [
        len(pack_segment(first, replay.steps[first:end], [ring[first:end] for ring in replay.frames])[0])
        for first in range(0, steps, MAX_SEGMENT_STEPS)
        for end in [min(steps, first + MAX_SEGMENT_STEPS)]
    ]
    return sum(sizes) / steps / 1000


def print_log(steps: int) -> None:
    print("task                 kB per step  times smaller  ms to pack  ms to unpack (one core, per step)")
    for task in TASKS:
        replay = record_replay(task, steps=steps)
        steps_of, frames = replay.steps[:steps], [ring[:steps] for ring in replay.frames]
        start_s = process_time()
        packed, _ = pack_segment(0, steps_of, frames)
        packed_s = process_time() - start_s
        start_s = process_time()
        Segment(packed).unpack_into(replay.steps, replay.frames, oldest=0)
        unpacked_s = process_time() - start_s
        raw = replay.nbytes / replay.capacity
        kb = compute_log_kb_per_step(replay, steps=steps)
        print(
            f"{task:20} {kb:11.2f}  {raw / kb / 1000:13.1f}  {1000 * packed_s / steps:10.3f}  "
            f"{1000 * unpacked_s / steps:12.3f}"
        )


@contextmanager
def open_runner(**changes: object) -> Iterator[Runner]:
    config = apply_overrides(
        load_preset("cpu", task="dmc/ball_in_cup_catch", method="drqv2+mem", seed=1), {**QUIET, **changes}
    )
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(config, RunDir(Path(directory) / "run"))
        yield runner
        runner.close()


def measure_loop_ratio(*, block_steps: int, rounds: int, saves_every_steps: int) -> tuple[float, float]:
    """Return the CPU time with log and checkpoints over that without, and the seconds of a step without."""
    torch.set_num_threads(1)
    schedule = {"random_steps": 50, "seed_frames": 400}
    often = {**QUIET["logging"], "checkpoint_every_frames": 4 * saves_every_steps}
    never = {**QUIET["logging"], "checkpoint_every_frames": 10**9}
    with open_runner(schedule=schedule, logging=often) as saving, open_runner(schedule=schedule, logging=never) as bare:
        bare.segment_log.flush_full_segments = lambda: None  # type: ignore[method-assign]
        for runner in (saving, bare):
            for _ in range(110):
                runner.advance()
        spent: list[list[float]] = []
        for _ in range(rounds):
            spent.append([])
            for runner in (saving, bare):
                start_s = process_time()
                for _ in range(block_steps):
                    runner.advance()
                runner.writer.wait()
                spent[-1].append(process_time() - start_s)
    with_s, without_s = (sum(times) for times in zip(*spent, strict=True))
    return with_s / without_s, without_s / rounds / block_steps


def measure_saving_share(*, steps: int, saves_every_steps: int) -> tuple[float, float]:
    """Return the CPU time of log and checkpoints in both threads as a share of the loop's, and seconds per checkpoint.

    Two loops measured side by side differ by some hundredths at random, more than this share.
    """
    torch.set_num_threads(1)
    spent = {"flush": 0.0, "save": 0.0, "segment": 0.0, "checkpoint": 0.0}

    def add_timer(work: Callable[..., None], name: str) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            start_s = thread_time()
            work(*arguments)
            spent[name] += thread_time() - start_s

        return run

    logging = {**QUIET["logging"], "checkpoint_every_frames": 4 * saves_every_steps}
    with open_runner(schedule={"random_steps": 50, "seed_frames": 400}, logging=logging) as runner:
        writer, submit = runner.writer, runner.writer.submit
        writer.submit = lambda job: submit(add_timer(job, "segment" if isinstance(job, SegmentJob) else "checkpoint"))  # type: ignore[method-assign]
        runner.segment_log.flush_full_segments = add_timer(runner.segment_log.flush_full_segments, "flush")  # type: ignore[method-assign]
        runner.save = add_timer(runner.save, "save")  # type: ignore[method-assign]
        for _ in range(110):
            runner.advance()
        spent.update(dict.fromkeys(spent, 0.0))
        start_s = process_time()
        for _ in range(steps):
            runner.advance()
        writer.wait()
        total_s = process_time() - start_s
    checkpoint_s = (spent["save"] + spent["checkpoint"]) / (steps / saves_every_steps)
    log_s = (spent["flush"] + spent["segment"]) / steps
    return (checkpoint_s / RUN_SAVES_EVERY_STEPS + log_s) / (total_s / steps), checkpoint_s


def print_loop() -> None:
    ratio, step_s = measure_loop_ratio(block_steps=250, rounds=4, saves_every_steps=250)
    print(f"side by side, a checkpoint every 250 steps: {ratio:.3f} times without; a step takes {1000 * step_s:.1f} ms")
    share, checkpoint_s = measure_saving_share(steps=500, saves_every_steps=100)
    every = f"{RUN_SAVES_EVERY_STEPS:,}"
    print(f"summed, a checkpoint every {every} steps: {share:.2%} of the loop; each takes {checkpoint_s:.3f} s of CPU")


def make_empty_replay(*, capacity: int, size: int) -> ReplayBuffer:
    views = (View("side", size, size), View("back", size, size), View("cut", size, size, derived_from="side"))
    return ReplayBuffer(views, action_shape=(6,), capacity=capacity, frame_stack=3)


def measure_waits(*, steps: int, saves: int, image_size: int) -> list[float]:
    """Return the seconds that the learner waits for each of `saves` checkpoints.

    The replay buffer holds `steps` steps, and the networks have the paper's size.
    """
    torch.set_num_threads(1)
    config = apply_overrides(
        load_preset("paper/dmc/drqv2", task="dmc/ball_in_cup_catch", method="drqv2+mem", seed=1),
        {
            **QUIET,
            "replay": {"capacity": steps, "batch_size": 8},
            "env": {"render_quality": "fast", "image_size": image_size},
        },
    )
    waits_s = []
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(config, RunDir(Path(directory) / "run"))
        trainer = runner.trainer
        assert isinstance(trainer, OffPolicyTrainer)
        for _ in range(20):
            trainer.advance()
        trainer.update()  # creates the optimizers' moments
        while trainer.replay.inserted < steps:
            trainer.replay.split_episode()
            runner.segment_log.flush_full_segments()
        for number in range(saves):
            for _ in range(300):
                trainer.replay.split_episode()
                runner.segment_log.flush_full_segments()
            start_s = perf_counter()
            runner.save(f"{number:09d}")
            waits_s.append(perf_counter() - start_s)
            runner.writer.wait()
        runner.close()
    return waits_s


def print_wait(steps: int, image_size: int) -> None:
    waits_s = measure_waits(steps=steps, saves=6, image_size=image_size)
    print(
        f"{steps:,} steps of {image_size} pixels: the learner waits {median(waits_s):.3f} s (median), "
        f"at most {max(waits_s):.3f} s"
    )


def print_resume(steps: int) -> None:
    source = record_replay("cheetah_run", steps=1000)
    replay = make_empty_replay(capacity=steps + 1, size=84)
    with tempfile.TemporaryDirectory() as directory:
        writer = AsyncWriter()
        log = SegmentLog(Path(directory), replay, writer)
        for number in range(0, steps, 1000):
            count = min(1000, steps - number)
            replay.steps["acted"][number : number + count] = True
            for ring, source_ring in zip(replay.frames, source.frames, strict=True):
                ring[number : number + count] = source_ring[:count]
            replay.inserted = number + count + 1
            log.flush()
        writer.wait()
        refs = log.list_segments(inserted=replay.inserted)
        size = sum(path.stat().st_size for path in Path(directory).iterdir())
        start_s, start_cpu_s = perf_counter(), process_time()
        log.load(refs)
        seconds, cpu = perf_counter() - start_s, process_time() - start_cpu_s
        start_s = perf_counter()
        segments = [Segment((Path(directory) / ref.name).read_bytes()) for ref in refs]
        checked_s = perf_counter() - start_s
        del segments
        writer.close()
    print(
        f"{steps:,} steps of 3 views ({size / 1e9:.2f} GB in {len(refs)} segments) load in {seconds:.1f} s "
        f"({cpu:.1f} s of CPU): reading and checksums {checked_s:.1f} s, unpacking the rest"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["log", "loop", "wait", "resume"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--image-size", type=int, default=84)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    match arguments.what:
        case "log":
            print_log(arguments.steps or MAX_SEGMENT_STEPS)
        case "loop":
            print_loop()
        case "wait":
            print_wait(arguments.steps or 500_000, arguments.image_size)
        case "resume":
            print_resume(arguments.steps or 100_000)


if __name__ == "__main__":
    main()
