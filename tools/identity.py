"""Check that a rename changes no value: short seeded runs against the ones recorded before, bit for bit.

    python tools/identity.py record      write tools/identity.json
    python tools/identity.py check       compare under tools/identity_names.json

Reads what a run directory holds and nothing of manyview's Python API, so that both sides of a rename can run it.
`identity_names.json` maps old to new: regular expressions on the names of tensors and state values, and metric names.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load

HERE = Path(__file__).parent
RECORDED, NAMES = HERE / "identity.json", HERE / "identity_names.json"
TOY = {
    "schedule.frames": 120,
    "schedule.random_steps": 20,
    "schedule.seed_frames": 30,
    "replay.capacity": 80,
    "replay.batch_size": 8,
    "evaluation.every_frames": 60,
    "evaluation.episodes": 1,
    "evaluation.video": False,
    "log.every_steps": 5,
    "log.checkpoint_every_frames": 60,
    "log.keep_replay": True,
    "log.tensorboard": False,
    "machine.threads": 1,
    "rollout.envs": 4,
    "rollout.steps": 5,
    "ppo.batch_size": 8,
    "ppo.epochs": 2,
}
DMC = {**TOY, **{name: 20 * TOY[name] for name in TOY if name.endswith("frames")}, "env.action_repeat": 20}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "drqv2+mem": ("toy/hidden_goal_continuous", "drqv2+mem", TOY),
    "sac+mem": ("toy/hidden_goal_continuous", "sac+mem", TOY),
    "ppo+mem": ("toy/hidden_goal", "ppo+mem", TOY),
    "drqv2+re3": ("toy/hidden_goal_continuous", "drqv2+re3", TOY),
    "drqv2+curl": ("toy/hidden_goal_continuous", "drqv2+curl", TOY),
    "ppo+ride": ("toy/hidden_goal", "ppo+ride", TOY),
    "dmc": ("dmc/ball_in_cup_catch", "drqv2+mem", DMC),
}
UNCOMPARED = {"seconds", "health"}


def train(name: str, out: Path) -> None:
    task, method, settings = RUNS[name]
    chosen = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    command = [sys.executable, "-m", "manyview", "train", task, "--method", method, "--preset", "minute", "--seed", "1"]
    subprocess.run([*command, "--out", str(out), "--set", *chosen], check=True, timeout=600, stdout=subprocess.DEVNULL)


def read(run: Path) -> dict[str, Any]:
    """Return the last checkpoint's values and the records of a run."""
    last = sorted((run / "checkpoints").glob("[0-9]*"))[-1]
    tensors = load((last / "state.safetensors").read_bytes())
    digests = {
        key: hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]
        for key, array in tensors.items()
    }
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "tensors": dict(sorted(digests.items())),
        "records": [{key: value for key, value in record.items() if key not in UNCOMPARED} for record in records],
    }


def rename(recorded: dict[str, Any], names: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return what was recorded under the names of today."""

    def rename_tensor(name: str) -> str:
        for old, new in names["tensors"].items():
            name = re.sub(old, new, name)
        return name

    metrics = names["metrics"]
    return {
        "tensors": dict(sorted((rename_tensor(name), digest) for name, digest in recorded["tensors"].items())),
        "records": [
            {metrics.get(key, key): value for key, value in record.items() if key not in UNCOMPARED}
            for record in recorded["records"]
        ],
    }


def compare(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    tensors = [expected["tensors"], got["tensors"]]
    differences = [f"tensor {key}" for key in sorted(tensors[0].keys() ^ tensors[1].keys())]
    differences += [
        f"values of {key}" for key in tensors[0].keys() & tensors[1].keys() if tensors[0][key] != tensors[1][key]
    ]
    records = [expected["records"], got["records"]]
    if len(records[0]) != len(records[1]):
        differences.append(f"{len(records[0])} records, now {len(records[1])}")
    for index, (before, now) in enumerate(zip(*records, strict=False)):
        keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        differences += [f"record {index}: {key} was {before.get(key)!r}, is {now.get(key)!r}" for key in keys]
    return differences


def main() -> int:
    recording = sys.argv[1:] == ["record"]
    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for name in RUNS:
            train(name, Path(scratch) / name)
            found[name] = read(Path(scratch) / name)
    if recording:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    names, recorded = json.loads(NAMES.read_text()), json.loads(RECORDED.read_text())
    status = 0
    for name, got in found.items():
        differences = compare(rename(recorded[name], names), got)
        print(f"{name}: {'identical' if not differences else f'{len(differences)} differences'}")
        for line in differences[:8]:
            print(f"    {line}")
        status |= bool(differences)
    return status


if __name__ == "__main__":
    sys.exit(main())
