"""Draw docs/images/augmentations.png: a game's screen under each augmentation, with three keys.

python -m tools.augmentations_figure
"""

from pathlib import Path

import torch

from manyview.data.augmentation import AUGMENTATIONS, augment
from manyview.envs import make
from manyview.envs.visualization import Row, draw_grid, record_random_steps, save_image
from manyview.utils.counter_rng import derive_keys

ROOT = Path(__file__).parents[1]
TASK, STEPS, FRAMES = "procgen/coinrun", 30, 3


def main() -> None:
    env = make(TASK)
    step = record_random_steps(env, STEPS, seed=3)[-1]
    env.close()
    screen = step.images["screen"]
    assert screen is not None
    images = torch.from_numpy(screen.transpose(2, 0, 1).copy()).expand(FRAMES, -1, -1, -1).contiguous()
    key = derive_keys(1, torch.arange(FRAMES))
    augmented = {how: augment(images, key, how).permute(0, 2, 3, 1).numpy() for how in AUGMENTATIONS}
    rows = [
        Row("one screen,\nthree keys" if frame == 0 else "", [screen, *(shown[frame] for shown in augmented.values())])
        for frame in range(FRAMES)
    ]
    image = draw_grid(rows, column_labels=["screen", *augmented], cell_px=96)
    save_image(image, ROOT / "docs" / "images" / "augmentations.png")


if __name__ == "__main__":
    main()
