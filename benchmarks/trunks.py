"""Compare the trunks: features, multiply-accumulates and time of an update, for 9 channels.

    python -m benchmarks.trunks

Times are in milliseconds, forward and backward, of 256 uint8 images on one core. The last column is their ratio to
those of images that are not channels-last.
"""

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import get_args

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk, normalize_images
from manyview.training.update_benchmark import time_alternating
from manyview.utils.resources import keep_freed_memory

SIZES = (16, 32, 64, 84)
BATCH_SIZE, ROUNDS = 256, 5


def measure_ms(image_shape: tuple[int, int, int], trunk: Trunk) -> tuple[float, float]:
    """Return the median CPU time of a forward and backward pass in milliseconds, and without channels-last images."""
    network = make_trunk(image_shape, trunk)[0].apply(init_orthogonal)
    images = torch.randint(256, (BATCH_SIZE, *image_shape), dtype=torch.uint8)

    def run(normalize: Callable[[Tensor], Tensor]) -> None:
        network(normalize(images)).sum().backward()

    runs = (partial(run, normalize) for normalize in (normalize_images, torch.no_grad()(normalize_images)))
    channels_last_s, contiguous_s = time_alternating(*runs, rounds=ROUNDS, clock=process_time)
    return 1000 * channels_last_s, 1000 * contiguous_s


def count_macs(image_shape: tuple[int, int, int], trunk: Trunk) -> int:
    """Return the multiply-accumulates of a trunk for one image [C, H, W]."""
    with FlopCounterMode(display=False) as counter:
        make_trunk(image_shape, trunk)[0](torch.empty(1, *image_shape))
    macs: int = counter.get_total_flops() // 2
    return macs


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| trunk | pixels | features | million multiply-accumulates | ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for trunk in get_args(Trunk):
        for size in SIZES:
            shape = (9, size, size)
            try:
                features, macs = make_trunk(shape, trunk)[1], count_macs(shape, trunk)
            except ValueError:  # too small for the trunk
                continue
            ms, contiguous_ms = measure_ms(shape, trunk)
            figures = f"{features:,} | {macs / 1e6:.2f} | {ms:.0f} | {ms / contiguous_ms:.2f}"
            print(f"| `{trunk}` | {size} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
