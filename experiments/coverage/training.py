"""Training runs of the study of coverage, and their measures: child processes cannot import them from `__main__`."""

import io
from collections.abc import Iterable
from shutil import rmtree

import numpy as np
from numpy.typing import NDArray

from experiments.bonus.controls import register_controls
from experiments.coverage import (
    FILM_FRAMES,
    FILM_STRIDE,
    SPACES,
    STATES_FILE,
    count_visits,
    get_map_path,
    measure_states,
)
from experiments.tables import Value
from manyview.data import ReplayBuffer
from manyview.scale.sweep import PlannedRun
from manyview.training import RunDir
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.runner import Runner
from manyview.utils.atomic_io import write_atomic


def cut_film(replay: ReplayBuffer) -> NDArray[np.uint8]:
    """Return images [FILM_FRAMES, H, W, C] of the first camera, every FILM_STRIDE steps up to the newest."""
    views, _ = replay.stack_frames(replay.inserted - 1 - FILM_STRIDE * np.arange(FILM_FRAMES)[::-1])
    newest = views[:, 0, -replay.views[0].channels :]  # of the stacked frames
    return newest.transpose(0, 2, 3, 1)


def train(run: PlannedRun) -> None:
    """Train a run to its end; store the states of its replay buffer and a film of its last steps in its directory."""
    register_controls()
    path = run.run_dir / STATES_FILE
    if path.exists():
        return
    if RunDir(run.run_dir).is_finished:  # and killed before its states were written
        rmtree(run.run_dir)
    with Runner(run.config, RunDir(run.run_dir)) as runner:
        runner.run()
        trainer = runner.trainer
        if isinstance(trainer, OffPolicyTrainer) and RunDir(run.run_dir).is_finished:
            states = trainer.replay.steps["vectors"][: len(trainer.replay)]
            buffer = io.BytesIO()
            np.savez_compressed(buffer, states=states, film=cut_film(trainer.replay))
            write_atomic(path, [buffer.getvalue()])


def measure(run: PlannedRun) -> Iterable[Value]:
    """Return coverage over the frames of a run, and keep the visits of its cells and its film."""
    with np.load(run.run_dir / STATES_FILE) as file:
        states, film = file["states"].astype(np.float64), file["film"]
    config = run.config
    space, path = SPACES[config.task], get_map_path(config.task, run.variant, config.method, config.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, visits=count_visits(states, space), film=film)
    return list(measure_states(states, space, config.schedule.frames))
