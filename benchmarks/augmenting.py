"""Time each augmentation of 256 images of 64 x 64 on one idle core.

    python -m benchmarks.augmenting

Times are in milliseconds and in copies of the same images; the second unit carries over to other machines.
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
    """Return the median time in milliseconds."""
    work, _ = _make_work(how)
    return 1000 * median(_time(work) for _ in range(ROUNDS))


def measure_copies(how: Augmentation, rounds: int) -> float:
    """Return the median time as a multiple of the time to copy the images."""
    work, copy = _make_work(how)
    return median(_time(work) / _time(copy) for _ in range(rounds))


def _make_work(how: Augmentation) -> tuple[Callable[[], object], Callable[[], object]]:
    images, key = torch.randint(256, (256, 3, 64, 64), dtype=torch.uint8), derive_keys(1, torch.arange(256))
    return lambda: augment(images, key, how), lambda: _copy(images)


def _copy(images: Tensor) -> None:
    """Copy image by image: the minimum work of every augmentation, in the order of the slow ones."""
    sources = images.numpy()
    for source, target in zip(sources, np.empty_like(sources), strict=True):
        target[:] = source


def _time(work: Callable[[], object]) -> float:
    start_s = process_time()
    work()
    return process_time() - start_s


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| augmentation | ms | copies |\n| --- | --- | --- |")
    for how in AUGMENTATIONS:
        print(f"| `{how}` | {measure_ms(how):.1f} | {measure_copies(how, ROUNDS):.1f} |", flush=True)


if __name__ == "__main__":
    main()
