"""Draw docs/images/collapse.png: what becomes of features and bonus without reward, literally and with our defaults.

python -m benchmarks.collapse_figure          # trains what is missing in results/collapse (15 minutes on one core)
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.recording import VIEWS, Recording
from benchmarks.unrewarded import parse_config, unrewarded

ROOT = Path(__file__).parents[1]
TASK, UPDATES, EVERY = "cheetah_run", 5000, 500
READINGS = {"literal": "the paper's text", "default": "manyview's defaults"}
COLOURS = {"literal": "#c0392b", "default": "#1f6f8b"}
STYLES = ("-", "--", ":")
FIDELITY = "none marginal batch"


def curve(reading: str) -> list[dict[str, Any]]:
    """The measurements of one reading, trained now if they are not kept yet."""
    kept = ROOT / "results" / "collapse" / f"{TASK}-{reading}.jsonl"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        config = parse_config(["literal"] if reading == "literal" else [])
        lines = []
        for measurement in unrewarded(Recording.load(TASK), config, updates=UPDATES, every=EVERY):
            lines.append(json.dumps(dataclasses.asdict(measurement)))
            print(f"{reading}: {measurement.updates} of {UPDATES} updates", flush=True)
        kept.write_text("\n".join(lines) + "\n")
    return [json.loads(line) for line in kept.read_text().splitlines()]


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    torch.set_num_threads(1)
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, layout="constrained")
    panels = (
        (axes[0, 0], "specific_std", "standard deviation of the features, per view"),
        (axes[0, 1], "specific_rank", "effective rank of the features, per view"),
        (axes[1, 0], "paid", "part of the bonus that each view pays"),
    )
    for reading, label in READINGS.items():
        lines = curve(reading)
        updates = [line["updates"] for line in lines]
        for axis, field, _ in panels:
            for view, style in zip(range(len(VIEWS)), STYLES, strict=True):
                values = [line[field][view] for line in lines]
                named = f"{label}, {VIEWS[view]} view" if axis is axes[0, 0] else None
                axis.plot(updates, values, style, color=COLOURS[reading], label=named)
        fidelity = [line["fidelity"][FIDELITY] for line in lines]
        axes[1, 1].plot(updates, fidelity, color=COLOURS[reading])
    for axis, _, title in panels:
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
    axes[1, 1].set_title("fidelity: rank correlation of the bonus with true rarity", fontsize=10)
    axes[1, 1].set_ylim(0, 1)
    for axis in axes[1]:
        axis.set_xlabel("updates without any reward")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    picture = ROOT / "docs" / "images" / "collapse.png"
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
