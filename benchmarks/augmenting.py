"""What each augmentation of 256 screens of 64 x 64 takes on one core of this machine, left alone: in milliseconds, and
in copies of the same screens made beside it, which says more of another machine.

python -m benchmarks.augmenting
"""

from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np
import torch
from torch import Tensor

from manyview.data.augmentation import AUGMENTATIONS, Augmentation, augment
from manyview.utils.counter_rng import derive_keys
from manyview.utils.resources import keep_freed_memory

ROUNDS = 101


def measure_ms(how: Augmentation) -> float:
    work, _ = _make_work(how)
    return 1000 * median(_time(work) for _ in range(ROUNDS))


def measure_copies(how: Augmentation, rounds: int) -> float:
    work, copying = _make_work(how)
    return median(_time(work) / _time(copying) for _ in range(rounds))


def _make_work(how: Augmentation) -> tuple[Callable[[], object], Callable[[], object]]:
    images, key = torch.randint(256, (256, 3, 64, 64), dtype=torch.uint8), derive_keys(1, torch.arange(256))
    return lambda: augment(images, key, how), lambda: _copy(images)


def _copy(images: Tensor) -> None:
    """What every augmentation does at least, in the way the slow ones do it: one image after the other."""
    pictures = images.numpy()
    for picture, copied in zip(pictures, np.empty_like(pictures), strict=True):
        copied[:] = picture


def _time(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| augmentation | ms | copies |\n| --- | --- | --- |")
    for how in AUGMENTATIONS:
        print(f"| `{how}` | {measure_ms(how):.1f} | {measure_copies(how, ROUNDS):.1f} |", flush=True)


if __name__ == "__main__":
    main()
