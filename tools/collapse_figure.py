"""Draw docs/images/collapse.png: features and bonus without reward, with the paper's text and with our defaults.

python -m tools.collapse_figure          # trains what results/collapse is missing (15 minutes on one core)
"""

import dataclasses
from pathlib import Path

import torch

from experiments.recording import VIEWS, Recording
from experiments.tables import TableRun, append_rows, read_runs
from experiments.unrewarded import make_rows, parse_config, train_unrewarded

ROOT = Path(__file__).parents[1]
STUDY, TASK, UPDATES, EVERY = "collapse", "cheetah_run", 5000, 500
READINGS = {"literal": "the paper's text", "default": "manyview's defaults"}
COLOURS = {"literal": "#c0392b", "default": "#1f6f8b"}
STYLES = ("-", "--", ":")
FIDELITY = "fidelity/none marginal batch"


def load_run(reading: str) -> TableRun:
    """Return the measurements of one reading; train it first if the table does not have it."""
    found = next((run for run in read_runs(STUDY) if run.variant == reading), None)
    if found is not None:
        return found
    config = parse_config(["literal"] if reading == "literal" else [])
    lines = []
    for measurement in train_unrewarded(Recording.load(TASK), config, updates=UPDATES, every=EVERY):
        lines.append(dataclasses.asdict(measurement))
        print(f"{reading}: {measurement.updates} of {UPDATES} updates", flush=True)
    append_rows(STUDY, make_rows(STUDY, reading, TASK, 0, lines), {reading: dataclasses.asdict(config)})
    return load_run(reading)


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
        run = load_run(reading)
        for axis, field, _ in panels:
            for view, style in zip(VIEWS, STYLES, strict=True):
                named = f"{label}, {view} view" if axis is axes[0, 0] else None
                axis.plot(*run.series(f"{field}/{view}"), style, color=COLOURS[reading], label=named)
        axes[1, 1].plot(*run.series(FIDELITY), color=COLOURS[reading])
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
    path = ROOT / "docs" / "images" / "collapse.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
