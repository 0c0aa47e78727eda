"""Time five ways to make a small update faster against the bare networks (P13).

    python -m benchmarks.update_trials --trunk small

Each trial changes an update of `sac+mem` in one way; CPU seconds of one thread, medians of alternating sides.
`docs/explanation/performance.md` has the figures. None is in the library.
"""

import argparse
import time
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from benchmarks.small_update import BareSAC, Update
from manyview.agents.encoded_batch import EncodedBatch
from manyview.data import Batch
from manyview.training.update_benchmark import time_alternating
from manyview.utils.resources import keep_freed_memory

NUM_WARMUP = 3


def encode_jointly(agent: Any, batch: Batch) -> EncodedBatch:
    """Encode s_t and s_{t+n} in one pass; the backward pass then runs through both."""
    views, next_views = (
        agent.augmentation.apply(images, agent.generator, agent.shift_mode)
        for images in (batch.views, batch.next_views)
    )
    both = agent.representation.encode(
        torch.cat([views, next_views]), torch.cat([batch.mask, batch.next_mask])
    )._asdict()
    rows = len(views)
    features = agent.feature_type(**{name: value[:rows] for name, value in both.items()})
    next_features = agent.feature_type(**{name: value[rows:].detach() for name, value in both.items()})
    with torch.no_grad():
        target_next_features = agent.target_representation.encode(next_views, batch.next_mask)
    return EncodedBatch(views, batch.mask, features, next_features, target_next_features)


def use_joint_encoding(update: Update) -> None:
    agent: Any = update.agent
    agent.feature_type = type(agent.representation.encode(update.batch.views, update.batch.mask))
    agent.encode_batch = MethodType(encode_jointly, agent)


def use_channels_last(update: Update) -> None:
    for representation in (update.agent.representation, update.agent.target_representation):
        representation.encoder.trunk.to(memory_format=torch.channels_last)


def use_bfloat16(update: Update) -> None:
    agent: Any = update.agent
    agent.update = torch.autocast("cpu", torch.bfloat16)(agent.update)


def compile_losses(update: Update) -> None:
    representation = update.agent.representation
    representation.compute_loss = torch.compile(representation.compute_loss, dynamic=False)


def compile_encoder(update: Update) -> None:
    for representation in (update.agent.representation, update.agent.target_representation):
        representation.encoder.forward = torch.compile(representation.encoder.forward, dynamic=False)


TRIALS: dict[str, Callable[[Update], None]] = {
    "s and s' in one pass": use_joint_encoding,
    "channels_last": use_channels_last,
    "bfloat16": use_bfloat16,
    "losses compiled": compile_losses,
    "encoders compiled": compile_encoder,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="small")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    updates = {
        name: Update("sac+mem", pixels=24, batch_size=256, views=3, trunk=args.trunk) for name in ("as it is", *TRIALS)
    }
    for name, change in TRIALS.items():
        change(updates[name])
        for _ in range(NUM_WARMUP):
            updates[name]()
    sides: list[Callable[[], object]] = [BareSAC(updates["as it is"]), *updates.values()]
    bare, *seconds = time_alternating(*sides, rounds=args.rounds, clock=time.process_time)
    print("| update | against the bare networks |\n|---|---|")
    for name, taken in zip(updates, seconds, strict=True):
        print(f"| {name} | {taken / bare:.2f} |")


if __name__ == "__main__":
    main()
