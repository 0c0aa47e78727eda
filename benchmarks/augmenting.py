"""Milliseconds of each augmentation for 256 screens of 64 x 64, on one core of this machine, left alone.

python -m benchmarks.augmenting
"""

from statistics import median
from time import perf_counter

import torch

from manyview.data.augment import AUGMENTATIONS, Augmentation, augment
from manyview.data.draws import keys
from manyview.train.memory import keep_freed_memory

ROUNDS = 101


def milliseconds(how: Augmentation) -> float:
    images, key = torch.randint(256, (256, 3, 64, 64), dtype=torch.uint8), keys(1, torch.arange(256))
    taken = []
    for _ in range(ROUNDS):
        began_s = perf_counter()
        augment(images, key, how)
        taken.append(perf_counter() - began_s)
    return 1000 * median(taken)


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    for how in AUGMENTATIONS:
        print(f"{how:14} {milliseconds(how):6.2f} ms", flush=True)


if __name__ == "__main__":
    main()
