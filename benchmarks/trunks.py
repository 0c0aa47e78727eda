"""Compare the trunks: features, multiply-accumulates and time of an update, for 9 channels.

    python -m benchmarks.trunks

Times are in milliseconds, forward and backward, of 256 images on one idle core.
"""

from statistics import median
from time import process_time
from typing import get_args

import torch
from torch.utils.flop_counter import FlopCounterMode

from manyview.nn.trunks import Trunk, init_orthogonal, make_trunk
from manyview.utils.resources import keep_freed_memory

SIZES = (16, 32, 64, 84)
BATCH_SIZE, ROUNDS = 256, 5


def measure_ms(image_shape: tuple[int, int, int], trunk: Trunk) -> float:
    """Return the median CPU time of a forward and backward pass in milliseconds."""
    network = make_trunk(image_shape, trunk)[0].apply(init_orthogonal)
    images, times_s = torch.rand(BATCH_SIZE, *image_shape), []
    for _ in range(1 + ROUNDS):
        start_s = process_time()
        network(images).sum().backward()
        times_s.append(process_time() - start_s)
    return 1000 * median(times_s[1:])  # the first allocates


def count_macs(image_shape: tuple[int, int, int], trunk: Trunk) -> int:
    """Return the multiply-accumulates of a trunk for one image [C, H, W]."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:  # shapes only, no memory
        make_trunk(image_shape, trunk)[0](torch.empty(1, *image_shape))
    macs: int = counter.get_total_flops() // 2
    return macs


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| trunk | pixels | features | million multiply-accumulates | ms |\n| --- | --- | --- | --- | --- |")
    for trunk in get_args(Trunk):
        for size in SIZES:
            shape = (9, size, size)
            try:
                features, macs = make_trunk(shape, trunk)[1], count_macs(shape, trunk)
            except ValueError:  # too small for the trunk
                continue
            print(
                f"| `{trunk}` | {size} | {features:,} | {macs / 1e6:.2f} | {measure_ms(shape, trunk):.0f} |", flush=True
            )


if __name__ == "__main__":
    main()
