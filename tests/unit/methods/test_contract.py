"""Every installed agent with every representation and bonus, by the contract that third parties inherit."""

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


class Brightness(Bonus):
    """A correct bonus, as the base of faulty ones."""

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


class CountsInPython(Brightness):
    count = 0

    def compute_reward(self, batch: Batch) -> Tensor:
        self.count += 1
        return super().compute_reward(batch) / self.count


class SeesAbsentViews(Brightness):
    def compute_reward(self, batch: Batch) -> Tensor:
        return batch.views.float().mean((1, 2, 3, 4)) / 255


class SharesItsState(Brightness):
    def __deepcopy__(self, memo: Any) -> "SharesItsState":
        return self


class ForgetsNextViews(Brightness):
    """Learns from the next state, without saying so."""

    def compute_rollout(self, rollout: RolloutBuffer, features: Any, *, window: int | None) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(rollout.reward_ext)

    def update(self, batch: Any) -> dict[str, Tensor]:
        return {"next_brightness": get_next(batch)[0].float().mean()}


class HasGradient(Brightness):
    def compute(self, batch: Batch, features: Any, values: Tensor) -> Tensor:  # noqa: ARG002
        return self.compute_reward(batch)


class IsHalfPrecision(Brightness):
    def compute_reward(self, batch: Batch) -> Tensor:
        return super().compute_reward(batch).bfloat16()


class HasWrongShape(Brightness):
    def compute_reward(self, batch: Batch) -> Tensor:
        return super().compute_reward(batch).mean().view(1)


class HidesMetric(Brightness):
    def update(self, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {"critic_loss": self.scale.detach()}


class ReturnsVector(Brightness):
    def update(self, batch: Any) -> dict[str, Tensor]:  # noqa: ARG002
        return {"brightness_scale": self.scale.detach().view(1)}


class IsInfinite(Brightness):
    def compute_reward(self, batch: Batch) -> Tensor:
        return super().compute_reward(batch) / 0.0


def run_contract(bonus: type[Brightness], test: str, monkeypatch: pytest.MonkeyPatch, *, agent: str = "sac") -> None:
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
    run_contract(Brightness, test, monkeypatch)


def test_next_views_that_are_used_without_notice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="expected a bonus with uses_next_views=True"):
        run_contract(ForgetsNextViews, "resume", monkeypatch, agent="ppo")
    monkeypatch.setattr(ForgetsNextViews, "uses_next_views", True)
    run_contract(ForgetsNextViews, "resume", monkeypatch, agent="ppo")


@pytest.mark.parametrize(
    ("bonus", "test", "message"),
    [
        (CountsInPython, "resume", "values differ"),
        (ReturnsVector, "resume", "expected finite scalars"),
        (IsInfinite, "resume", "non-finite gradient"),
        (SeesAbsentViews, "copy", "values differ"),
        (SharesItsState, "copy", "values differ"),
        (HasGradient, "bfloat16", "expected torch.no_grad"),
        (IsHalfPrecision, "bfloat16", "expected float32"),
        (HasWrongShape, "bfloat16", "expected one shape"),
        (HidesMetric, "bfloat16", "critic_loss"),
    ],
)
def test_a_fault_of_a_bonus_is_found(
    bonus: type[Brightness], test: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, ArithmeticError, ValueError), match=message):
        run_contract(bonus, test, monkeypatch)
