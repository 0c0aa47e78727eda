"""Store a small interrupted run of this release as a test fixture that later versions must resume.

    python -m benchmarks.keep_release

writes tests/fixtures/releases/VERSION, once for each release.
"""

import argparse
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import manyview
from manyview.config.overrides import apply_overrides
from manyview.training import RunConfig, RunDir, checkpoint, load_preset
from manyview.training.runner import Runner
from manyview.utils.atomic_io import remove

RELEASES = Path(__file__).parents[1] / "tests" / "fixtures" / "releases"
STOP_FRAMES, FRAMES = 40, 60
NEUTRAL = {"host": "somewhere", "platform": "Linux", "pid": 1, "commit": None}
"""Replacements for manifest values that identify the machine."""


def make_config() -> RunConfig:
    return apply_overrides(
        load_preset("minute", task="toy/hidden_goal_continuous", method="drqv2+mem", seed=1),
        {
            "schedule": {"frames": FRAMES, "random_steps": 15, "seed_frames": 20},
            "replay": {"capacity": 100, "batch_size": 8},
            "evaluation": {"every_frames": 100, "episodes": 1, "video": False},
            "logging": {"every_steps": 1, "checkpoint_every_frames": 100, "tensorboard": False},
            "compute": {"device": "cpu"},
            "agent": {"hidden": 16},
            "representation": {"latent_dim": 4},
        },
    )


class StopAtFrame:
    """Logger that interrupts the run at `STOP_FRAMES`, like Ctrl-C."""

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train" and record["frames"] == STOP_FRAMES:
            os.kill(os.getpid(), signal.SIGINT)

    def close(self) -> None:
        pass


def scrub(run_dir: RunDir) -> None:
    """Remove all traces of the machine from the run directory and recompute the checksums."""
    remove(run_dir.path / "lock")
    run_dir.write_manifest({**run_dir.read_manifest(), **NEUTRAL})
    for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir):
        contents = {name: (path / name).read_bytes() for name in checkpoint.FILES}
        manifest = {**json.loads(contents[checkpoint.MANIFEST_FILE]), **NEUTRAL}
        contents[checkpoint.MANIFEST_FILE] = json.dumps(manifest, indent=1).encode()
        contents[checkpoint.CHECKSUMS_FILE] = checkpoint.format_checksums(contents)
        for name, content in contents.items():
            (path / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep_release", description=__doc__)
    parser.add_argument("--version", default=manyview.__version__.split(".dev")[0])
    run_dir = RunDir(RELEASES / parser.parse_args().version)
    if run_dir.has_run:
        raise SystemExit(f"{run_dir.path} exists already. A release fixture is written only once.")
    runner = Runner(make_config(), run_dir, loggers=[StopAtFrame()])
    try:
        runner.run()
    finally:
        runner.close()
    scrub(run_dir)
    print(f"{run_dir.path}: {sum(path.stat().st_size for path in run_dir.path.rglob('*')) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
