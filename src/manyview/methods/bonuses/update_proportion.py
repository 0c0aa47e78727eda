"""Updates of a bonus's own networks on a part of each batch."""

from dataclasses import dataclass
from typing import Any, overload

import torch

from manyview.data.batch import Batch, Minibatch
from manyview.utils.validation import check_positive, check_unit_interval


@dataclass(frozen=True, kw_only=True)
class BonusUpdateConfig:
    """Settings of the updates of a bonus's networks."""

    update_proportion: float = 1.0
    """Proportion of a batch's rows that `Bonus.update` learns from; r̂ is computed for all rows. RND was published with
    0.25 at 128 environments. Critics of VCSE learn from all rows."""

    def __post_init__(self) -> None:
        check_positive(self, "update_proportion")
        check_unit_interval(self, "update_proportion")


@overload
def take_proportion(batch: Batch, proportion: float) -> Batch: ...
@overload
def take_proportion(batch: Minibatch, proportion: float) -> Minibatch: ...
def take_proportion(batch: Batch | Minibatch, proportion: float) -> Batch | Minibatch:
    """Return this proportion of the rows, at least one, evenly spread over the batch.

    A batch may hold demonstrations or the rows of another actor behind the others.
    """
    if proportion == 1:
        return batch
    count = len(batch.mask)
    rows = max(round(proportion * count), 1)
    step, rest = divmod(count, rows)
    # Slices copy nothing.
    taken = torch.arange(rows, device=batch.mask.device) * count // rows if rest else slice(None, None, step)
    parts: dict[str, Any] = batch._asdict()
    if "next_features" in parts:
        parts["next_features"] = None  # of the policy's encoder: no bonus learns from them
    selected: dict[str, Any] = {name: None if part is None else part[taken] for name, part in parts.items()}
    return batch._replace(**selected)
