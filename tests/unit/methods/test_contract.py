"""The composition contract, on all installed parts and on faulty bonuses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyview.data import Batch, RolloutBuffer
from manyview.data.batch import get_next
from manyview.methods import BONUSES, Bonus, BonusConfig, BuildContext
from manyview.methods.registry import Part
from manyview.training.testing import CompositionContract


class TestParts(CompositionContract):
    """Every representation without a bonus and every bonus on pixels, with few updates."""

    updates = 4

    def list_methods(self) -> list[str]:
        names = [method.split("+") for method in super().list_methods()]
        parts = [name for name in names if name[1] in ("pixel", name[2]) or name[2] == "none"]
        return [
            "+".join(name) for name in parts if name[0] != "drqv2" or name[1:] in (["mem", "mem"], ["pixel", "ride"])
        ]


@pytest.mark.long
class TestAllCombinations(CompositionContract):
    """The full product, with fifty updates before and after the state is restored."""


@dataclass(frozen=True, kw_only=True)
class BrightnessConfig(BonusConfig):
    pass


class BrightnessBonus(Bonus):
    """Correct bonus, the base class of faulty ones."""

    calls: Tensor

    def __init__(self, config: BrightnessConfig, context: BuildContext) -> None:  # noqa: ARG002
        super().__init__()
        self.config = config
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    @torch.no_grad()
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        return self.compute_reward(batch)

    def compute_reward(self, batch: Batch) -> Tensor:
        self.calls += 1
        brightness = batch.views.float().mean((2, 3, 4)) / 255  # [B, V]
        return self.scale * (brightness * batch.mask).mean(1) / self.calls

    def update(self, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {"brightness_scale": self.scale.detach()}


class PythonCounterBonus(BrightnessBonus):
    count = 0

    def compute_reward(self, batch: Batch) -> Tensor:
        self.count += 1
        return super().compute_reward(batch) / self.count


class AbsentViewsBonus(BrightnessBonus):
    def compute_reward(self, batch: Batch) -> Tensor:
        return batch.views.float().mean((1, 2, 3, 4)) / 255


class SharedStateBonus(BrightnessBonus):
    def __deepcopy__(self, memo: Any) -> "SharedStateBonus":
        return self


class UndeclaredNextViewsBonus(BrightnessBonus):
    """Bonus that uses next views without `uses_next_views`."""

    def compute_rollout(self, rollout: RolloutBuffer, features: Any, *, window: int | None) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(rollout.reward_ext)

    def update(self, batch: Any) -> dict[str, Tensor]:
        return {"next_brightness": get_next(batch)[0].float().mean()}


class GradientBonus(BrightnessBonus):
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        return self.compute_reward(batch)


class HalfPrecisionBonus(BrightnessBonus):
    def compute_reward(self, batch: Batch) -> Tensor:
        return super().compute_reward(batch).bfloat16()


class WrongShapeBonus(BrightnessBonus):
    def compute_reward(self, batch: Batch) -> Tensor:
        return super().compute_reward(batch).mean().view(1)


class DuplicateMetricBonus(BrightnessBonus):
    def update(self, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {"critic_loss": self.scale.detach()}


class VectorMetricBonus(BrightnessBonus):
    def update(self, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {"brightness_scale": self.scale.detach().view(1)}


class InfiniteBonus(BrightnessBonus):
    def compute_reward(self, batch: Batch) -> Tensor:
        return super().compute_reward(batch) / 0.0


def run_contract(
    bonus: type[BrightnessBonus], test: str, monkeypatch: pytest.MonkeyPatch, *, agent: str = "sac"
) -> None:
    part = Part("brightness", BrightnessConfig, bonus, ("replay", "rollout"))
    monkeypatch.setitem(BONUSES._parts, "brightness", part)
    contract = CompositionContract()
    contract.updates = 3  # type: ignore[misc]
    tests: dict[str, Callable[..., None]] = {
        "resume": contract.test_training_is_finite_and_resumes_bit_for_bit,
        "copy": contract.test_a_copy_trains_alone_and_absent_views_have_no_effect,
        "bfloat16": contract.test_many_views_in_bfloat16_give_finite_rewards_and_separate_metrics,
    }
    arguments = (f"{agent}+pixel+brightness", contract.build_trainer)
    tests[test](*arguments, *([monkeypatch] if test == "bfloat16" else []))


@pytest.mark.parametrize("test", ["resume", "copy", "bfloat16"])
def test_a_correct_bonus_passes(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_contract(BrightnessBonus, test, monkeypatch)


def test_undeclared_use_of_next_views_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="expected a bonus with uses_next_views=True"):
        run_contract(UndeclaredNextViewsBonus, "resume", monkeypatch, agent="ppo")
    monkeypatch.setattr(UndeclaredNextViewsBonus, "uses_next_views", True)
    run_contract(UndeclaredNextViewsBonus, "resume", monkeypatch, agent="ppo")


@pytest.mark.parametrize(
    ("bonus", "test", "message"),
    [
        (PythonCounterBonus, "resume", "values differ"),
        (VectorMetricBonus, "resume", "expected finite scalars"),
        (InfiniteBonus, "resume", "non-finite gradient"),
        (AbsentViewsBonus, "copy", "values differ"),
        (SharedStateBonus, "copy", "values differ"),
        (GradientBonus, "bfloat16", "expected torch.no_grad"),
        (HalfPrecisionBonus, "bfloat16", "expected float32"),
        (WrongShapeBonus, "bfloat16", "expected one shape"),
        (DuplicateMetricBonus, "bfloat16", "critic_loss"),
    ],
)
def test_a_fault_of_a_bonus_is_found(
    bonus: type[BrightnessBonus], test: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, ArithmeticError, ValueError), match=message):
        run_contract(bonus, test, monkeypatch)
