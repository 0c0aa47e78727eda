"""PPO learns from augmented images, also from those that show another goal.

`python -m tests.integration.learning.test_drac` prints a table of all choices and seeds.
"""

import sys
from typing import Any

import pytest

from tests.support.toys import train_and_evaluate

TASK, FRAMES = "toy/hidden_goal", 10_000
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("ppo+none", {}),
    **{name: ("ppo+drac", {"augmentation": name}) for name in ("cutout", "crop", "flip", "rotate")},
    "bandit": ("ppo+ucb_drac", {}),
}


def score_choice(choice: str, *, frames: int = FRAMES, seed: int = 1, **settings: Any) -> float:
    """Train with a choice and return the mean evaluation reward per step."""
    method, changes = CHOICES[choice]
    return train_and_evaluate(TASK, method, frames=frames, changes={"representation": changes | settings}, seed=seed)


@pytest.mark.slow
def test_ppo_learns_with_the_bandit() -> None:
    assert score_choice("bandit", frames=4_000) > 0.5  # 0.77 to 0.86 in three seeds; random actions: 0.11


if __name__ == "__main__":
    seeds = range(1, 1 + int(sys.argv[1]) if len(sys.argv) > 1 else 6)
    print("choice", *(f"seed {seed}" for seed in seeds), sep="\t")
    for choice in sys.argv[2:] or CHOICES:
        print(choice, *(f"{score_choice(choice, seed=seed):.3f}" for seed in seeds), sep="\t", flush=True)
