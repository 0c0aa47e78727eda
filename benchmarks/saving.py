"""What it costs to keep a run: the log, the checkpoints, and coming back.

python -m benchmarks.saving log        # kB and ms a step, on frames of DeepMind Control
python -m benchmarks.saving loop       # the training loop with log and checkpoints against without, side by side
python -m benchmarks.saving wait       # how long the learner waits for a checkpoint with many steps in its replay
python -m benchmarks.saving resume     # how long it takes to come back, and what the time is spent on
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
from manyview.train import RunDir, load_preset
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.runner import Runner

RUN_SAVES_EVERY_STEPS = 2_500
"""Of the cpu preset: 10,000 frames."""
TASKS = ("ball_in_cup_catch", "cheetah_run", "finger_turn_hard", "pendulum_swingup", "reacher_hard")
QUIET: dict[str, dict[str, Any]] = {
    "evaluation": {"every_frames": 10**9, "video": False},
    "log": {"tensorboard": False},
}


def record_replay(task: str, *, steps: int, image_size: int = 84) -> ReplayBuffer:
    """A replay of random actions, as the paper's settings store it."""
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
    """In segments of the size that the log writes."""
    sizes = [
        len(pack_segment(first, replay.steps[first:end], [ring[first:end] for ring in replay.frames])[0])
        for first in range(0, steps, MAX_SEGMENT_STEPS)
        for end in [min(steps, first + MAX_SEGMENT_STEPS)]
    ]
    return sum(sizes) / steps / 1000


def print_log(steps: int) -> None:
    print("task                 kB a step  times smaller  ms to pack  ms to unpack (one core, a step)")
    for task in TASKS:
        replay = record_replay(task, steps=steps)
        steps_of, frames = replay.steps[:steps], [ring[:steps] for ring in replay.frames]
        began = process_time()
        packed, _ = pack_segment(0, steps_of, frames)
        packed_s = process_time() - began
        began = process_time()
        Segment(packed).unpack_into(replay.steps, replay.frames, oldest=0)
        unpacked_s = process_time() - began
        raw = replay.nbytes / replay.capacity
        kb = compute_log_kb_per_step(replay, steps=steps)
        print(
            f"{task:20} {kb:9.2f}  {raw / kb / 1000:13.1f}  {1000 * packed_s / steps:10.3f}  "
            f"{1000 * unpacked_s / steps:12.3f}"
        )


@contextmanager
def open_runner(**changes: object) -> Iterator[Runner]:
    config = apply_overrides(
        load_preset("cpu", task="dmc/ball_in_cup_catch", method="drqv2+mem", seed=1), {**QUIET, **changes}
    )
    with tempfile.TemporaryDirectory() as place:
        session = Runner(config, RunDir(Path(place) / "run"))
        yield session
        session.close()


def measure_loop_ratio(*, block_steps: int, rounds: int, saves_every_steps: int) -> tuple[float, float]:
    """CPU time of a loop with log and checkpoints over that of one without, and the seconds of a step without."""
    torch.set_num_threads(1)
    schedule = {"random_steps": 50, "seed_frames": 400}
    often = {**QUIET["log"], "checkpoint_every_frames": 4 * saves_every_steps}
    never = {**QUIET["log"], "checkpoint_every_frames": 10**9}
    with open_runner(schedule=schedule, log=often) as kept, open_runner(schedule=schedule, log=never) as bare:
        bare.segment_log.flush_full_segments = lambda: None  # type: ignore[method-assign]
        for session in (kept, bare):
            for _ in range(110):
                session.advance()
        spent: list[list[float]] = []
        for _ in range(rounds):
            spent.append([])
            for session in (kept, bare):
                began = process_time()
                for _ in range(block_steps):
                    session.advance()
                session.writer.wait()
                spent[-1].append(process_time() - began)
    with_s, without_s = (sum(times) for times in zip(*spent, strict=True))
    return with_s / without_s, without_s / rounds / block_steps


def measure_saving_share(*, steps: int, saves_every_steps: int) -> tuple[float, float]:
    """CPU time of the log and the checkpoints, in both threads, as a share of the loop's; and seconds of a checkpoint.

    Side by side two loops differ by some hundredths by chance, which is more than what is looked for.
    """
    torch.set_num_threads(1)
    spent = {"follow": 0.0, "save": 0.0, "segment": 0.0, "checkpoint": 0.0}

    def timed(work: Callable[..., None], name: str) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            began = thread_time()
            work(*arguments)
            spent[name] += thread_time() - began

        return run

    log = {**QUIET["log"], "checkpoint_every_frames": 4 * saves_every_steps}
    with open_runner(schedule={"random_steps": 50, "seed_frames": 400}, log=log) as session:
        scribe, ask = session.writer, session.writer.submit
        scribe.submit = lambda job: ask(timed(job, "segment" if isinstance(job, SegmentJob) else "checkpoint"))  # type: ignore[method-assign]
        session.segment_log.flush_full_segments = timed(session.segment_log.flush_full_segments, "follow")  # type: ignore[method-assign]
        session.save = timed(session.save, "save")  # type: ignore[method-assign]
        for _ in range(110):
            session.advance()
        spent.update(dict.fromkeys(spent, 0.0))
        began = process_time()
        for _ in range(steps):
            session.advance()
        scribe.wait()
        total_s = process_time() - began
    checkpoint_s = (spent["save"] + spent["checkpoint"]) / (steps / saves_every_steps)
    log_s = (spent["follow"] + spent["segment"]) / steps
    return (checkpoint_s / RUN_SAVES_EVERY_STEPS + log_s) / (total_s / steps), checkpoint_s


def print_loop() -> None:
    ratio, step_s = measure_loop_ratio(block_steps=250, rounds=4, saves_every_steps=250)
    print(f"side by side, with a checkpoint every 250 steps: {ratio:.3f} times without; a step {1000 * step_s:.1f} ms")
    share, checkpoint_s = measure_saving_share(steps=500, saves_every_steps=100)
    every = f"{RUN_SAVES_EVERY_STEPS:,}"
    print(f"counted, with one every {every} steps: {share:.2%} of the loop; one takes {checkpoint_s:.3f} s of CPU")


def make_empty_replay(*, capacity: int, size: int) -> ReplayBuffer:
    views = (View("side", size, size), View("back", size, size), View("cut", size, size, derived_from="side"))
    return ReplayBuffer(views, action_shape=(6,), capacity=capacity, frame_stack=3)


def measure_waits(*, steps: int, saves: int, image_size: int) -> list[float]:
    """Seconds the learner waits for each of some checkpoints, with so many steps in its replay and networks of the
    paper's size.
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
    found = []
    with tempfile.TemporaryDirectory() as place:
        session = Runner(config, RunDir(Path(place) / "run"))
        trainer = session.trainer
        assert isinstance(trainer, OffPolicyTrainer)
        for _ in range(20):
            trainer.advance()
        trainer.update()  # optimisers have moments then
        while trainer.replay.inserted < steps:
            trainer.replay.split_episode()
            session.segment_log.flush_full_segments()
        for number in range(saves):
            for _ in range(300):
                trainer.replay.split_episode()
                session.segment_log.flush_full_segments()
            began = perf_counter()
            session.save(f"{number:09d}")
            found.append(perf_counter() - began)
            session.writer.wait()
        session.close()
    return found


def print_wait(steps: int, image_size: int) -> None:
    found = measure_waits(steps=steps, saves=6, image_size=image_size)
    middle, most = median(found), max(found)
    print(f"{steps:,} steps of {image_size} pixels: the learner waits {middle:.3f} s (median), at most {most:.3f} s")


def print_resume(steps: int) -> None:
    source = record_replay("cheetah_run", steps=1000)
    replay = make_empty_replay(capacity=steps + 1, size=84)
    with tempfile.TemporaryDirectory() as place:
        scribe = AsyncWriter()
        log = SegmentLog(Path(place), replay, scribe)
        for number in range(0, steps, 1000):
            many = min(1000, steps - number)
            replay.steps["acted"][number : number + many] = True
            for ring, other in zip(replay.frames, source.frames, strict=True):
                ring[number : number + many] = other[:many]
            replay.inserted = number + many + 1
            log.flush()
        scribe.wait()
        entries = log.list_segments(inserted=replay.inserted)
        size = sum(path.stat().st_size for path in Path(place).iterdir())
        began, began_cpu = perf_counter(), process_time()
        log.load(entries)
        seconds, cpu = perf_counter() - began, process_time() - began_cpu
        began = perf_counter()
        segments = [Segment((Path(place) / entry.name).read_bytes()) for entry in entries]
        checked = perf_counter() - began
        del segments
        scribe.close()
    print(
        f"{steps:,} steps of 3 views ({size / 1e9:.2f} GB in {len(entries)} segments) are back after {seconds:.1f} s "
        f"({cpu:.1f} s of CPU): reading and checksums {checked:.1f} s, unpacking the rest"
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
