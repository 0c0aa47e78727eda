"""`agent.view_dropout`: shares of hidden views, masks of rollouts, and evaluations."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.run_comparison import compare_trees
from manyview.training import factory, make_trainer
from manyview.training.evaluation import evaluate_policy
from tests.support.batches import make_agent, make_batch
from tests.support.runs import make_short_config, make_short_rollout_config

KINDS = pytest.mark.parametrize("kind", ["drqv2", "sac"])
P = 0.4


def record_masks(module: Any) -> list[Tensor]:
    """Return a list that collects the masks of `module.encode`."""
    masks, encode = list[Tensor](), module.encode

    def record(views: Tensor, mask: Tensor) -> Any:
        masks.append(mask)
        return encode(views, mask)

    module.encode = record
    return masks


@KINDS
def test_updates_hide_the_share_of_the_closed_form(kind: str) -> None:
    """Each of two views stays with probability 1 - p + p² / 2; s_{t+n} has all views."""
    agent: Any = make_agent(kind, "none", shift_pixels=0, view_dropout=P)
    data, share, count = make_batch(512), 0.0, 6
    for _ in range(count):
        encoded = agent.encode_batch(data)
        assert encoded.mask.any(1).all()
        assert torch.equal(encoded.features.mask, encoded.mask)
        assert encoded.next_features.mask.all()
        share += encoded.mask.float().mean().item() / count
    # 6,144 views, of which the two of a row are not independent: four standard errors at most.
    assert share == pytest.approx(1 - P + P**2 / 2, abs=4 * 0.5 / (count * 512) ** 0.5)


@KINDS
@pytest.mark.parametrize("method", ["none", "curl", "mem", "pixel+mem"])
def test_every_representation_learns_with_dropped_views(kind: str, method: str) -> None:
    agent: Any = make_agent(kind, method, reward_frames="augmented", view_dropout=P)
    before = [parameter.detach().clone() for parameter in agent.representation.parameters()]
    for step in range(2):
        metrics = agent.update(make_batch(seed=step), step)
    assert all(value.isfinite() for value in metrics.values())
    names = [name for name, _ in agent.representation.named_parameters()]
    changed = {
        name
        for name, old, new in zip(names, before, agent.representation.parameters(), strict=True)
        if not torch.equal(old, new)
    }
    assert any("absent_token" in name for name in changed), "the token of an absent view is trained"


@KINDS
def test_the_reward_is_that_of_all_views(kind: str) -> None:
    agent: Any = make_agent(kind, "mem", shift_pixels=0, reward_frames="augmented", view_dropout=P)
    agent.eval()  # r̂ without new statistics
    data, values = make_batch(32), torch.zeros(2, 32)
    encoded = agent.encode_batch(data)
    assert not encoded.mask.all()
    expected = agent.bonus.compute(data, agent.representation.encode(data.views, data.mask), values[0])
    assert torch.equal(agent.compute_bonus(data, encoded, values), expected)


@KINDS
def test_acting_off_policy_sees_all_views(kind: str) -> None:
    agent: Any = make_agent(kind, "none", view_dropout=1.0)
    masks, data = record_masks(agent.representation), make_batch()
    agent.act(data.views, data.mask, step=0, explore=True)
    assert all(mask.all() for mask in masks)


@pytest.mark.parametrize("method", ["ppo+none", "ppo+curl", "ppo+mem", "ppo+pixel+mem", "ppo+ride"])
def test_ppo_hides_the_same_views_in_acting_values_and_updates(method: str) -> None:
    """One mask per environment and rollout; masks differ between environments and rollouts."""
    config = make_short_rollout_config(method, agent={"view_dropout": P}, rollout={"envs": 8})
    trainer: Any = make_trainer(config)
    masks = record_masks(trainer.agent.representation)
    rollout_masks = []
    for _ in range(3):
        masks.clear()
        while not trainer.rollout.is_full:
            trainer.advance()
        acting_masks = [mask for mask in masks if len(mask) == 8]
        assert len(acting_masks) >= 6, "five steps, the value after them, and final values"
        assert all(torch.equal(mask, acting_masks[0]) for mask in acting_masks)
        rows = trainer._minibatches[0]
        assert torch.equal(trainer.rollout.get_minibatch(rows).mask, acting_masks[0][rows % 8])
        masks.clear()
        while trainer.rollout.is_full:
            trainer.advance()
        assert all(
            any(torch.equal(row, acting_row) for acting_row in acting_masks[0]) for mask in masks for row in mask
        )
        rollout_masks.append(acting_masks[0])
    trainer.close()
    all_masks = torch.stack(rollout_masks)
    assert all_masks.any(2).all()
    assert not all_masks.all()
    assert len(torch.unique(all_masks, dim=0)) == 3
    assert all(torch.isfinite(parameter).all() for parameter in trainer.agent.parameters())


def test_ppo_hides_the_share_of_the_closed_form_by_the_seed_of_the_run() -> None:
    masks = []
    for seed in (1, 2):
        config = make_short_rollout_config("ppo+none", seed=seed, agent={"view_dropout": P})
        env = factory.make_vector_env(config)
        buffer = factory.build_rollout_buffer(config, factory.infer_shapes(config, env))
        env.close()
        draws, envs = (index.flatten() for index in torch.meshgrid(torch.arange(50), torch.arange(80), indexing="ij"))
        views = torch.zeros(4000, 2, 3, 1, 1, dtype=torch.uint8)
        _, mask = buffer.derived_views(views, torch.ones(4000, 2, dtype=torch.bool), draw_ids=draws, env_ids=envs)
        assert mask.float().mean().item() == pytest.approx(1 - P + P**2 / 2, abs=4 * 0.5 / 4000**0.5)
        masks.append(mask)
    assert not torch.equal(*masks)


def test_the_final_value_of_a_truncated_episode_sees_the_rollouts_mask() -> None:
    trainer: Any = make_trainer(
        make_short_rollout_config("ppo+none", agent={"view_dropout": 1.0}, rollout={"steps": 10})
    )
    masks, predict = list[Tensor](), trainer.agent.predict_values

    def record(views: Tensor, mask: Tensor) -> Tensor:
        masks.append(mask)
        result: Tensor = predict(views, mask)
        return result

    trainer.agent.predict_values = record
    expected = trainer.rollout.get_observation()[1]
    while not trainer.rollout.is_full:
        trainer.advance()
    trainer.close()
    assert masks
    assert all(torch.equal(mask, expected) and (mask.sum(1) == 1).all() for mask in masks)


@pytest.mark.parametrize("method", ["ppo+none", "drqv2+none"])
def test_evaluations_see_all_views(method: str) -> None:
    make_config = make_short_rollout_config if method == "ppo+none" else make_short_config
    config = make_config(method, agent={"view_dropout": 1.0})
    trainer: Any = make_trainer(config)
    env, masks = factory.make_env(config), record_masks(trainer.agent.representation)
    evaluate_policy(trainer.agent, env, trainer.shapes, episodes=1, seed=0, step=0)
    env.close()
    trainer.close()
    assert masks
    assert all(mask.all() for mask in masks)


def test_a_resumed_run_hides_the_same_views() -> None:
    """Both runs continue from the second rollout and end with equal states."""
    config = make_short_rollout_config("ppo+mem", agent={"view_dropout": P})
    trainers: list[Any] = [make_trainer(config) for _ in range(2)]
    trainer, resumed = trainers
    while trainer.counters.rollouts < 2:
        trainer.advance()
    resumed.load_state(trainer.get_state(), lambda: None)
    for instance in trainers:
        while instance.counters.rollouts < 4:
            instance.advance()
        instance.close()
    assert not compare_trees(trainer.get_state(), resumed.get_state())
