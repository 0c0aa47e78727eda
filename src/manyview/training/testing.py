"""Reusable tests of agents, representations and bonuses in all their combinations.

    from manyview.training.testing import CompositionContract

    class TestMyBonus(CompositionContract):
        bonus = "my_bonus"

Put this class into a test file and run pytest: it combines your part with every installed agent, representation and
bonus. `settings` makes your networks small.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from copy import deepcopy
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from manyview.config.presets import apply_sections, make_config
from manyview.data import Batch, Minibatch
from manyview.envs.toy.envs import ActionKind, ToyEnv, draw_bars
from manyview.envs.views import Image, Observation
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS
from manyview.nn.module_state import find_differences
from manyview.training import checkpoint
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.on_policy import OnPolicyTrainer

AnyTrainer = OffPolicyTrainer | OnPolicyTrainer
SIZES: dict[str, Any] = {"trunk": "tiny", "latent_dim": 4}
SMALL: dict[str, Any] = {
    "env": {"frame_stack": 2},
    "schedule": {"frames": 10_000, "random_steps": 8, "seed_frames": 16},
    "replay": {"capacity": 100, "batch_size": 8, "n_step": 2, "augmentation_pixels": 1},
    "rollout": {"envs": 2, "steps": 8},
    "compute": {"device": "cpu", "threads": 1},
    "agent": {"all": {"hidden": 16, "batch_size": 8, "epochs": 2}},
    "representation": {"all": {**SIZES, "hidden": 16, "shift_pixels": 1, "sequence_length": 4}},
    "bonus": {"all": {**SIZES, "hidden": 16, "k": 3, "bank": 0}, "mem": {"encoder": SIZES}},
}
"""Settings of all tests, in the form of a preset: `all` applies to every part that has the setting."""


class ContractEnv(ToyEnv):
    """Bars whose position changes at random; in two of three steps one view is absent."""

    terminal = True

    def __init__(self, num_views: int, actions: ActionKind) -> None:
        space = spaces.Discrete(3) if actions == "discrete" else spaces.Box(-1.0, 1.0, (2,), np.float32)
        super().__init__([f"view{number}" for number in range(num_views)], space, episode_steps=6)
        self._bars = draw_bars(9, upright=True)

    def sample_initial_state(self) -> dict[str, int]:
        num_views, rng = len(self.views), self.np_random
        return {"position": int(rng.integers(9)), "absent": int(rng.integers(num_views + num_views // 2))}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        reward = float(self._state["position"] == 0) + 0.1 * float(np.sum(action))
        self._state.update(self.sample_initial_state())
        return reward, {}

    def render_views(self) -> dict[str, Image]:
        images = [self._bars[self._state["position"]].copy() for _ in self.views]
        for number, image in enumerate(images):
            image[:12], image[:12, 2 * number : 2 * number + 2] = 0, 255  # tells the views apart
        return {view.name: image for view, image in zip(self.views, images, strict=True)}

    def _observe(self) -> Observation:
        images: dict[str, Image | None] = {**self.render_views()}
        if self._state["absent"] < len(self.views):
            images[self.views[self._state["absent"]].name] = None
        return self.observe(images)


def make_two_views() -> ContractEnv:
    """Make two views with continuous actions."""
    return ContractEnv(2, "continuous")


def make_eight_views() -> ContractEnv:
    """Make eight views with continuous actions."""
    return ContractEnv(8, "continuous")


def make_eight_views_discrete() -> ContractEnv:
    """Make eight views with discrete actions."""
    return ContractEnv(8, "discrete")


class CompositionContract:
    """Tests of a part with all others; set the name of yours, and `settings` that make it small."""

    agent: ClassVar[str | None] = None
    """Agent to test; None for all."""
    representation: ClassVar[str | None] = None
    """Representation to test; None for all."""
    bonus: ClassVar[str | None] = None
    """Bonus to test; None for all."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings as in a preset, such as `{"bonus": {"my_bonus": {"width": 8}}}`."""
    updates: ClassVar[int] = 50
    """Updates before and after the state is restored."""

    def list_methods(self) -> list[str]:
        """Return all combinations of the part with the installed others."""
        choices = ((self.agent, AGENTS), (self.representation, REPRESENTATIONS), (self.bonus, BONUSES))
        return [
            "+".join(names) for names in product(*([name] if name else kind.list_names() for name, kind in choices))
        ]

    def can_combine(self, method: str) -> bool:
        """Return whether a run accepts the combination; override it for a part with further conditions."""
        agent, representation, bonus = method.split("+")
        return all(part.shares_data(AGENTS[agent]) for part in (REPRESENTATIONS[representation], BONUSES[bonus]))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with every combination that fits together."""
        if "method" in metafunc.fixturenames:
            metafunc.parametrize("method", [*filter(self.can_combine, self.list_methods())])

    def build_trainer(self, method: str, *, env: str = "two_views", precision: str = "float32") -> AnyTrainer:
        """Build a small trainer of a method."""
        config = make_config(f"{__name__}:make_{env}", method=method)
        config = apply_sections(config, SMALL, self.settings, {"compute": {"precision": precision}})
        return OnPolicyTrainer(config) if config.is_on_policy else OffPolicyTrainer(config)

    @pytest.fixture
    def make_trainer(self) -> Iterator[Callable[..., AnyTrainer]]:
        """Return `build_trainer`, and close its trainers after the test."""
        with ExitStack() as trainers:

            def make(method: str, **options: str) -> AnyTrainer:
                return trainers.enter_context(closing(self.build_trainer(method, **options)))

            yield make

    def test_training_is_finite_and_resumes_bit_for_bit(
        self, method: str, make_trainer: Callable[..., AnyTrainer]
    ) -> None:
        trainer, resumed = make_trainer(method), make_trainer(method)
        train_to_checkpoint(trainer, self.updates)
        saved = checkpoint.deserialize_checkpoint(checkpoint.serialize_checkpoint(trainer.get_state(), {})).state
        resumed.load_state(saved, lambda: copy_replay(trainer, resumed))
        assert_equal(trainer.get_state(), resumed.get_state())
        metrics, resumed_metrics = (train_to_checkpoint(each, self.updates) for each in (trainer, resumed))
        assert_equal(metrics, resumed_metrics)
        assert_equal(trainer.get_state(), resumed.get_state())

    def test_a_copy_trains_alone_and_absent_views_have_no_effect(
        self, method: str, make_trainer: Callable[..., AnyTrainer]
    ) -> None:
        trainer = make_trainer(method)
        train_to_checkpoint(trainer, 3)
        batch, before = draw_batch(trainer), trainer.agent.get_state()
        assert not batch.mask.all()
        copies = [deepcopy(trainer.agent) for _ in range(2)]
        metrics = [update(copies[0], batch), update(copies[1], add_noise_to_batch(batch))]
        assert_equal(before, trainer.agent.get_state())
        assert_equal(*metrics)
        assert_equal(*(agent.get_state() for agent in copies))
        assert_equal(metrics[0], update(trainer.agent, batch))
        if isinstance(trainer, OnPolicyTrainer) and trainer.agent.bonus is not None:
            clean = compute_rollout_bonus(trainer)
            trainer.rollout.frames = add_noise(trainer.rollout.frames, trainer.rollout.mask)
            assert_equal(clean, compute_rollout_bonus(trainer))

    def test_many_views_in_bfloat16_give_finite_rewards_and_separate_metrics(
        self, method: str, make_trainer: Callable[..., AnyTrainer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = AGENTS[method.split("+")[0]].data[0]
        env = "eight_views_discrete" if source == "rollout" else "eight_views"
        trainer = make_trainer(method, env=env, precision="bfloat16")
        agent = trainer.agent
        losses = record_calls(agent.representation, "compute_loss", monkeypatch)
        policy_losses = record_calls(agent.representation, "compute_policy_loss", monkeypatch)
        updates = record_calls(agent.representation, "update", monkeypatch)
        rewards = record_calls(agent.bonus, "compute" if source == "replay" else "compute_rollout", monkeypatch)
        own_metrics = record_calls(agent.bonus, "update", monkeypatch)
        metrics = train_to_checkpoint(trainer, 3)
        assert (agent.bonus is None) == (not rewards) == (not own_metrics)
        for reward in rewards:
            assert not reward.requires_grad, "the bonus has a gradient: expected torch.no_grad"
            assert reward.dtype == torch.float32, f"the bonus is imprecise: expected float32, got {reward.dtype}"
            assert reward.isfinite().all(), f"the bonus is not finite: {reward}"
        if rewards:
            batch, shape = trainer.get_last_batch(), rewards[-1].shape
            expected_shape = batch.reward_ext.shape if isinstance(batch, Batch) else (8, 2)
            assert shape == expected_shape, f"the bonus: expected shape {expected_shape}, got {shape}"
        for part in (losses[-1], *policy_losses[-1:], *updates[-1:], *own_metrics[-1:]):
            hidden = [name for name, value in part.items() if metrics[name] is not value]
            assert not hidden, f"metrics of two parts: expected names of one part, got {', '.join(hidden)}"

    def test_parts_that_do_not_fit_together_are_refused_by_name(self) -> None:
        for method in self.list_methods():
            if not self.can_combine(method):
                with pytest.raises(ValueError, match=f"got {method.split('+')[0]}"):
                    make_config("toy/hidden_goal", method=method)


def train_to_checkpoint(trainer: AnyTrainer, updates: int) -> dict[str, Tensor]:
    """Train to the next checkpoint after some updates; return the last metrics, all finite scalars."""
    target, metrics = trainer.counters.updates + updates, dict[str, Tensor]()
    while trainer.counters.updates < target or not trainer.can_checkpoint:
        metrics = trainer.advance().metrics or metrics
        assert trainer.counters.skipped_updates == 0, "an update was skipped: expected a finite gradient"
        invalid = {name: value for name, value in metrics.items() if value.ndim or not value.isfinite()}
        assert not invalid, f"invalid metrics: expected finite scalars, got {invalid}"
    assert not [name for name, value in metrics.items() if value.requires_grad], "metrics: expected detached tensors"
    return metrics


def draw_batch(trainer: AnyTrainer) -> Batch | Minibatch:
    """Return a batch for one more update."""
    if isinstance(trainer, OffPolicyTrainer):
        return trainer.sampler.sample()
    while not trainer.num_pending_updates:
        trainer.advance()
    return trainer.rollout.get_minibatch(torch.arange(8), with_next=True)


def update(agent: Any, batch: Batch | Minibatch) -> dict[str, Tensor]:
    """Take one update of an agent that is not in a trainer."""
    metrics: dict[str, Tensor] = agent.update(batch, 20) if isinstance(batch, Batch) else agent.update(batch)
    return metrics


def compute_rollout_bonus(trainer: OnPolicyTrainer) -> Tensor:
    """Return r̂ [T, E] of the rollout by a copy of the bonus."""
    bonus, rollout = deepcopy(trainer.agent.bonus), trainer.rollout
    assert bonus is not None
    return bonus.compute_rollout(rollout, rollout.features if bonus.feature_source else None, window=None)


def add_noise(views: Tensor, mask: Tensor) -> Tensor:
    """Return `views` [..., V, C, H, W] with random pixels where `mask` [..., V] says that a view is absent."""
    noise = torch.randint(256, views.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return torch.where(mask[..., None, None, None], views, noise)


def add_noise_to_batch(batch: Any) -> Any:
    """Return a batch with random pixels in absent views."""
    return batch._replace(
        views=add_noise(batch.views, batch.mask), next_views=add_noise(batch.next_views, batch.next_mask)
    )


def record_calls(part: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the rewards or metrics of each call, with gradients enabled."""
    results: list[Any] = []
    if not hasattr(part, name):
        return results
    method = getattr(part, name)

    def call(*args: Any, **options: Any) -> Any:
        with torch.set_grad_enabled(True):
            result = method(*args, **options)
        is_loss = isinstance(result, tuple)  # loss and metrics; agents add theirs to the same dict
        results.append(dict(result[1]) if is_loss else result if isinstance(result, Tensor) else dict(result))
        return result

    monkeypatch.setattr(part, name, call)
    return results


def copy_replay(source: AnyTrainer, target: AnyTrainer) -> None:
    """Copy the stored steps, which the segment log of a run holds."""
    if isinstance(source, OffPolicyTrainer) and isinstance(target, OffPolicyTrainer):
        rings = [(trainer.replay.steps, *trainer.replay.rings) for trainer in (source, target)]
        for ring, copy in zip(*rings, strict=True):
            copy[...] = ring


def assert_equal(first: Any, second: Any) -> None:
    """Check that two trees of values are equal in every bit."""
    differences = find_differences(first, second)
    assert not differences, f"values differ: {', '.join(differences[:10])}"
