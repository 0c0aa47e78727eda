"""A small run, stopped in its middle, to be kept for ever: later versions must be able to go on with it.

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
from manyview.train import RunConfig, RunDir, checkpoint, load_preset
from manyview.train.runner import Runner
from manyview.utils.atomic_io import remove

RELEASES = Path(__file__).parents[1] / "tests" / "fixtures" / "releases"
STOP_FRAMES, FRAMES = 40, 60
NEUTRAL = {"host": "somewhere", "platform": "Linux", "pid": 1, "commit": None}
"""Nobody needs to know where it was made."""


def make_config() -> RunConfig:
    return apply_overrides(
        load_preset("minute", task="toy/hidden_goal_continuous", method="drqv2+mem", seed=1),
        {
            "schedule": {"frames": FRAMES, "random_steps": 15, "seed_frames": 20},
            "replay": {"capacity": 100, "batch_size": 8},
            "evaluation": {"every_frames": 100, "episodes": 1, "video": False},
            "log": {"every_steps": 1, "checkpoint_every_frames": 100, "tensorboard": False},
            "machine": {"device": "cpu"},
            "drqv2": {"hidden": 16},
            "mem": {"latent_dim": 4},
        },
    )


class StopAtFrame:
    """A listener that presses Ctrl-C."""

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train" and record["frames"] == STOP_FRAMES:
            os.kill(os.getpid(), signal.SIGINT)

    def close(self) -> None:
        pass


def scrub(folder: RunDir) -> None:
    """Leave nothing of the machine in it; the checksums are made anew."""
    remove(folder.path / "lock")
    folder.write_manifest({**folder.read_manifest(), **NEUTRAL})
    for path in checkpoint.list_checkpoints(folder.checkpoints_dir):
        contents = {name: (path / name).read_bytes() for name in checkpoint.FILES}
        manifest = {**json.loads(contents[checkpoint.MANIFEST_FILE]), **NEUTRAL}
        contents[checkpoint.MANIFEST_FILE] = json.dumps(manifest, indent=1).encode()
        contents[checkpoint.CHECKSUMS_FILE] = checkpoint.format_checksums(contents)
        for name, content in contents.items():
            (path / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep_release", description=__doc__)
    parser.add_argument("--version", default=manyview.__version__.split(".dev")[0])
    folder = RunDir(RELEASES / parser.parse_args().version)
    if folder.has_run:
        raise SystemExit(f"{folder.path} is kept already, and never made again")
    session = Runner(make_config(), folder, loggers=[StopAtFrame()])
    try:
        session.run()
    finally:
        session.close()
    scrub(folder)
    print(f"{folder.path}: {sum(path.stat().st_size for path in folder.path.rglob('*')) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
