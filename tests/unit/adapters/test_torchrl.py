"""Adapters for TorchRL."""

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from manyview.adapters.torchrl import MEMBonus, MEMEncoder, MEMLoss, detach_states
from manyview.mem import MEM, BetaSchedule
from tests.support.adapters import (
    BONUSES,
    IMAGE_SHAPE,
    TOLERANCE,
    VIEW_NAMES,
    compute_bonuses,
    make_images,
    make_library_bonus,
    make_mem_config,
    make_rollout,
    stack_images,
)

ROWS, ENVS, STEPS, BETA = 48, 3, 20, 0.5


def return_beta(_: int) -> float:
    return BETA


def make_mem(**changes: Any) -> MEM:
    torch.manual_seed(0)
    return MEM(VIEW_NAMES, IMAGE_SHAPE, make_mem_config(**changes))


def make_data(*shape: int, mask: bool = False) -> TensorDict:
    """Return random transitions; with `mask`, every fifth lacks the first view."""
    tensor_dicts = []
    for seed in (1, 2):
        images = {name: torch.as_tensor(image) for name, image in make_images(*shape, seed=seed).items()}
        present = torch.ones(*shape, len(VIEW_NAMES), dtype=torch.int8)
        present.view(-1, len(VIEW_NAMES))[::5, 0] = 0
        tensor_dicts.append(TensorDict(images | ({"mask": present} if mask else {}), batch_size=shape))
    data, next_data = tensor_dicts
    next_data["reward"] = torch.randn(*shape, 1, generator=torch.Generator().manual_seed(3))
    data["next"] = next_data
    return data


def get_views(data: TensorDict) -> torch.Tensor:
    return stack_images({name: data[name].numpy() for name in VIEW_NAMES})


def test_the_encoder_writes_the_state_of_any_batch() -> None:
    mem = make_mem()
    data = make_data(4, 5, mask=True)
    encoder = MEMEncoder(mem, mask_key="mask")
    state = encoder(data)["state"]
    expected = mem.encode(get_views(data).flatten(0, 1), data["mask"].flatten(0, 1).bool()).state
    assert state.shape == (4, 5, mem.state_dim)
    assert_close(state.flatten(0, 1), expected)
    unmasked_state = MEMEncoder(mem)(make_data(4, 5))["state"]
    assert not torch.allclose(unmasked_state, state), "without the mask the absent views are seen"


def test_images_of_another_type_are_refused() -> None:
    data = make_data(4)
    data["row"] = data["row"].float() / 255
    data["column"] = data["column"].float() / 255
    with pytest.raises(TypeError, match="expected uint8 images from 0 to 255"):
        MEMEncoder(make_mem())(data)


@pytest.mark.parametrize("name", BONUSES)
def test_the_bonus_of_a_replay_buffer_is_that_of_the_library(name: str) -> None:
    changes = BONUSES[name]
    mem, data = make_mem(**changes), make_data(ROWS, mask=True)
    encoder = MEMEncoder(mem, mask_key="mask")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=32)
    buffer.append_transform(MEMBonus(encoder, return_beta))
    buffer.extend(data)
    library = make_library_bonus(mem, **changes)
    for _ in range(3):
        sample = buffer.sample()
        index = sample["index"]
        assert len(index.unique()) < len(index), "some rows are sampled twice"
        rows = data[index]
        expected = compute_bonuses(library, get_views(rows), rows["mask"].bool(), index)
        assert_close(sample["reward_int"].squeeze(1), expected, rtol=0, atol=TOLERANCE)
        weighted_bonus = sample["next", "reward"] - rows["next", "reward"]
        assert_close(weighted_bonus.squeeze(1), BETA * expected, rtol=0, atol=TOLERANCE)
    assert_close(buffer[:]["next", "reward"] * 0, torch.zeros(ROWS, 1))
    assert_close(buffer._storage[:]["next", "reward"], data["next", "reward"], rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(BONUSES.keys() - {"bank"}))
@pytest.mark.parametrize("window", [None, 30])
def test_the_bonus_of_rollouts_is_that_of_the_library(name: str, window: int | None) -> None:
    changes = BONUSES[name]
    mem, data = make_mem(**changes), make_data(ENVS, STEPS, mask=True)
    rewards = data["next", "reward"].clone()
    result = MEMBonus(MEMEncoder(mem, mask_key="mask"), return_beta, window=window)(data)
    assert torch.equal(data["next", "reward"], rewards), "the rollout stays as it was"
    views, mask = get_views(data).transpose(0, 1), data["mask"].bool().transpose(0, 1)
    rollout = make_rollout(torch.cat([views, views[-1:]]), torch.cat([mask, mask[-1:]]))
    expected = make_library_bonus(mem, **changes).compute_rollout(rollout, None, window=window)
    assert_close(result["reward_int"].squeeze(2), expected.T, rtol=0, atol=TOLERANCE)
    assert_close((result["next", "reward"] - rewards).squeeze(2), BETA * expected.T, rtol=0, atol=TOLERANCE)


def test_beta_decays_by_the_elapsed_steps() -> None:
    bonus = MEMBonus(MEMEncoder(make_mem()), BetaSchedule(1.0, beta_decay=0.5))
    data = make_data(ROWS)
    first_bonus = bonus(data)["next", "reward"] - data["next", "reward"]
    bonus.elapsed = 2
    later_bonus = bonus(data)["next", "reward"] - data["next", "reward"]
    assert_close(later_bonus, first_bonus / 4, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"expected transitions \[B\] or rollouts \[E, T\], got \[2, 2, 2\]"):
        bonus(make_data(2, 2, 2))


def test_the_loss_is_that_of_mem_and_trains_the_encoder_with_other_losses_in_one_pass() -> None:
    mem, data = make_mem(), make_data(ROWS, mask=True)
    mask, next_mask = data["mask"].bool(), data["next", "mask"].bool()
    features = mem.encode(get_views(data), mask)
    with torch.no_grad():
        next_features = mem.encode(get_views(data["next"]), next_mask)
    loss, metrics = mem.compute_loss(features, next_features)
    (loss + features.state.square().sum()).backward()
    expected = {name: p.grad.clone() for name, p in mem.named_parameters() if p.grad is not None}
    mem.zero_grad()
    old_weight = mem.discriminator.weight.detach().clone()

    losses = MEMLoss(MEMEncoder(mem, mask_key="mask"))(data)
    assert_close(losses["loss_mem"], loss)
    assert_close(losses["con_loss"], metrics["con_loss"])
    assert not torch.equal(mem.discriminator.weight, old_weight)
    assert_close(data["next", "state"], next_features.state)
    assert not data["next", "state"].requires_grad
    (losses["loss_mem"] + data["state"].square().sum()).backward()
    for name, parameter in mem.named_parameters():
        if name in expected:
            assert_close(parameter.grad, expected[name], msg=name)


def test_the_loss_without_gradient_trains_nothing() -> None:
    mem = make_mem()
    old_weight = mem.discriminator.weight.detach().clone()
    with torch.no_grad():
        MEMLoss(MEMEncoder(mem))(make_data(ROWS))
    assert torch.equal(mem.discriminator.weight, old_weight)


def test_an_actor_on_detached_states_does_not_train_the_encoder() -> None:
    mem, data = make_mem(), make_data(ROWS)
    MEMLoss(MEMEncoder(mem))(data)
    actor = torch.nn.Linear(mem.state_dim, 1)
    actor(detach_states(data)["state"]).sum().backward()
    assert actor.weight.grad is not None
    assert all(p.grad is None for p in mem.encoder.parameters())
    assert data["state"].requires_grad, "the batch itself is not detached"


def test_channels_last_are_refused() -> None:
    data = make_data(4)
    for name in VIEW_NAMES:
        data[name] = torch.as_tensor(np.moveaxis(data[name].numpy(), 1, -1))
    with pytest.raises(ValueError, match=r"expected views \[B, V, C, H, W\]"):
        MEMEncoder(make_mem())(data)
