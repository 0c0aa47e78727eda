"""Train MEM's encoder on recorded frames without extrinsic reward, and measure features and bonus.

    python -m experiments.unrewarded cheetah_run --updates 5000 --config floor_coef=0   # one line per measurement

Minutes here replace hours of learning curves: **fidelity** is the rank correlation, within batches of 256, of r̂
with the 3-NN distance in the true physics state. It shows whether the bonus is higher for states that are rare.
"""

import argparse
import ast
import copy
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.recording import VIEWS, Recording, Shift, shift_images
from experiments.tables import Row
from manyview.mem import MEM, Features, MEMConfig, knn_distance
from manyview.mem.diagnostics import effective_rank
from manyview.mem.feature_bank import FeatureBank
from manyview.mem.knn import Combine, ReferenceSet
from manyview.mem.reward import compute_distances, intrinsic_reward
from manyview.utils.resources import keep_freed_memory

FIDELITY_BATCH, FIDELITY_BATCHES, BANK = 256, 6, 2048
SHIFTS: tuple[Shift, ...] = ("none", "each", "common")
COMBINES: tuple[Combine, ...] = ("marginal", "joint")


@dataclass(frozen=True)
class Measurement:
    """Features and bonus after some updates. Lists have one entry per view; `paid` also has one for shared features."""

    updates: int
    specific_std: list[float]
    shared_std: list[float]
    specific_rank: list[float]
    shared_rank: list[float]
    discriminator: float
    cosine: float
    paid: list[float]
    reward_mean: float
    reward_std: float
    fidelity: dict[str, float]
    """By shift of the frames, entropy, and search set of the bonus and of true rarity: `batch` both within the batch,
    `batch for all` the batch's bonus against rarity among 2,304 rows, `bank for all` both among those."""


def spearman(a: Tensor, b: Tensor) -> float:
    """Return the rank correlation of two vectors; ties, rare in distances, are broken by position."""
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def compute_true_rarity(recording: Recording, rows: Tensor, others: Tensor) -> Tensor:
    """Return the 3-NN distance of each row among these and the other rows, in the true physics state."""
    everything = recording.state[torch.cat([rows, others])].unsqueeze(0)
    among = ReferenceSet(
        everything, torch.ones(everything.shape[:2], dtype=torch.bool), torch.arange(everything.shape[1])
    )
    return knn_distance(recording.state[rows].unsqueeze(0), 3, reference=among)[0]


def compute_bonus(
    features: Features, k: int, entropy: Combine, rows: Tensor | None = None, among: ReferenceSet | None = None
) -> Tensor:
    return intrinsic_reward(*compute_distances(features, k=k, entropy=entropy, indices=rows, reference=among))


def train_unrewarded(
    recording: Recording,
    config: MEMConfig,
    *,
    updates: int,
    every: int,
    batch: int = 32,
    learning_rate: float = 1e-4,
    shift: Shift = "each",
    ahead: int = 1,
    slow_rate: float = 0.0,
    seed: int = 0,
    measured_shifts: tuple[Shift, ...] = SHIFTS,
) -> Iterator[Measurement]:
    """Yield a measurement at the start and after `every` updates; `slow_rate` > 0 rewards by an averaged encoder."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    mem = MEM(VIEWS, recording.image_shape, config)
    mem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it; faster on CPUs
    optimizer = torch.optim.Adam(mem.parameters(), lr=learning_rate)
    slow = copy.deepcopy(mem.encoder) if slow_rate else mem.encoder
    yield measure(mem, slow, recording, 0, measured_shifts)
    for update in range(1, updates + 1):
        rows = recording.sample(batch, generator, ahead=ahead)
        features = mem.encode(shift_images(recording.stack_frames(rows), generator, shift))
        later = None
        if config.temporal_coef:
            with torch.no_grad():
                later = mem.encode(shift_images(recording.stack_frames(rows + ahead), generator, shift))
        loss, _ = mem.compute_loss(features, later)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        mem.update_discriminator(features)
        if config.distance_scale != "raw" or config.reward_scale != "raw":
            mem.compute_reward(features)  # moves the running scales as training would
        if slow_rate:
            with torch.no_grad():
                for old, new in zip(slow.parameters(), mem.encoder.parameters(), strict=True):
                    old.lerp_(new, slow_rate)
        if update % every == 0:
            yield measure(mem, slow, recording, update, measured_shifts)


@torch.no_grad()
def measure(
    mem: MEM, rewarding: torch.nn.Module, recording: Recording, updates: int, shifts: tuple[Shift, ...]
) -> Measurement:
    """Measure on the same rows every time; `rewarding` is the encoder of the bonus."""
    mem.eval()
    generator = torch.Generator().manual_seed(1)
    # Disjoint: a row in both batch and bank would be its own neighbor in the bonus and in the true state.
    shuffled = recording.shuffle_rows(generator)
    bank_rows, batches = shuffled[:BANK], shuffled[BANK:].split(FIDELITY_BATCH)[:FIDELITY_BATCHES]
    bank_stacks = recording.stack_frames(bank_rows)
    fidelity: dict[str, list[float]] = {}
    for how in shifts:
        bank = FeatureBank(BANK, len(VIEWS) + 1, mem.config.latent_dim)
        bank.push(rewarding(shift_images(bank_stacks, generator, how)), bank_rows)
        for rows in batches:
            features = rewarding(shift_images(recording.stack_frames(rows), generator, how))
            among_batch = compute_true_rarity(recording, rows, bank_rows[:0])
            among_all = compute_true_rarity(recording, rows, bank_rows)
            for entropy in COMBINES:
                in_batch = compute_bonus(features, mem.config.k, entropy)
                in_bank = compute_bonus(features, mem.config.k, entropy, rows, bank.make_reference(features, rows))
                for name, figure in (
                    ("batch", spearman(in_batch, among_batch)),
                    ("batch for all", spearman(in_batch, among_all)),
                    ("bank for all", spearman(in_bank, among_all)),
                ):
                    fidelity.setdefault(f"{how} {entropy} {name}", []).append(figure)
    stacks = recording.stack_frames(batches[-1])
    features, paid = mem.encode(stacks), rewarding(stacks)
    health = mem.diagnose(features, beta=1.0)
    paid_health = mem.diagnose(paid, beta=1.0)
    mem.train()
    per_view = range(len(VIEWS))
    return Measurement(
        updates=updates,
        specific_std=[features.specific[:, i].std(0).mean().item() for i in per_view],
        shared_std=[features.shared[:, i].std(0).mean().item() for i in per_view],
        specific_rank=[effective_rank(features.specific[:, i]) for i in per_view],
        shared_rank=[effective_rank(features.shared[:, i]) for i in per_view],
        discriminator=health.discriminator_accuracy,
        cosine=sum(health.cosine.values()) / len(VIEWS),
        paid=[share * paid_health.reward_mean for share in paid_health.share.values()],
        reward_mean=paid_health.reward_mean,
        reward_std=paid_health.reward_std,
        fidelity={how: sum(values) / len(values) for how, values in fidelity.items()},
    )


def parse_config(overrides: list[str]) -> MEMConfig:
    """Parse settings such as `floor_coef=0 entropy=joint`; `literal` first selects the paper's text."""
    config = MEMConfig.literal() if overrides[:1] == ["literal"] else MEMConfig()
    values = {}
    for override in overrides[1:] if overrides[:1] == ["literal"] else overrides:
        name, _, value = override.partition("=")
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[name] = value
    return dataclasses.replace(config, trunk="small", **values)


def make_rows(study: str, variant: str, task: str, seed: int, measurements: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return measurements as rows of a study's table, with updates in the place of frames."""
    rows = []
    for measured in measurements:
        values: dict[str, float] = {}
        for name, value in measured.items():
            if isinstance(value, list):
                views = (*VIEWS, "shared")[: len(value)]
                values |= {f"{name}/{view}": part for view, part in zip(views, value, strict=True)}
            elif name == "fidelity":
                values |= {f"{name}/{how}": part for how, part in value.items()}
            elif name not in ("updates", "run"):
                values[name] = value
        key = (study, variant, f"dmc/{task}", "none", "mem", "mem", "+".join(VIEWS), seed)
        updates = float(measured["updates"])
        rows += [Row(*key, updates, None, metric, float(value), "") for metric, value in values.items()]
    return rows


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--shift", choices=["none", "each", "common"], default="each")
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--slow-rate", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--config", nargs="*", default=[])
    return parser


def describe_run(command: list[str]) -> dict[str, Any]:
    """Return everything that determines the measurements of a command."""
    asked = vars(make_parser().parse_args(command))
    return {**asked, "config": dataclasses.asdict(parse_config(asked["config"]))}


def main() -> None:
    keep_freed_memory()
    run = describe_run(sys.argv[1:])
    asked = vars(make_parser().parse_args())
    torch.set_num_threads(asked.pop("threads"))
    recording, config = Recording.load(asked.pop("task")), parse_config(asked.pop("config"))
    for measurement in train_unrewarded(recording, config, **asked):
        print(json.dumps({**dataclasses.asdict(measurement), "run": run}), flush=True)


if __name__ == "__main__":
    main()
