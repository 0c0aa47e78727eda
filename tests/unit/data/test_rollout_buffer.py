"""Rollout buffers: stored steps, next values, and derived views as acted on."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from manyview.data import DerivedViews, RolloutBuffer
from manyview.data.augmentation import Augmentation, augment
from manyview.utils.counter_rng import derive_keys

STEPS, ENVS, IMAGE = 5, 3, (3, 16, 16)
CUTOUT = DerivedViews(7, ((0, "cutout"),))


def make_rollout(derived: DerivedViews = CUTOUT, *, cameras: int = 1) -> RolloutBuffer:
    return RolloutBuffer(
        num_steps=STEPS,
        num_envs=ENVS,
        image_shape=IMAGE,
        num_cameras=cameras,
        action_shape=(),
        action_dtype=torch.int64,
        derived_views=derived,
        device=torch.device("cpu"),
    )


def make_images(seed: int, *, cameras: int = 1) -> tuple[Tensor, Tensor]:
    shape = (ENVS, cameras, *IMAGE)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return images, torch.ones(ENVS, cameras).bool()


def fill_rollout(rollout: RolloutBuffer, *, first_step: int = 0) -> list[tuple[Tensor, ...]]:
    """Fill a rollout with the scalars 10 t + e; return the observation before each step."""
    rollout.reset(*make_images(0), first_step=first_step)
    observations = []
    for step in range(STEPS):
        observations.append(rollout.get_observation())
        scalars = 10 * step + torch.arange(ENVS)
        views, mask = make_images(step + 1)
        terminated = torch.arange(ENVS) == step  # environment e in step e; the last one is truncated in step 4
        rollout.add(
            scalars,
            scalars.float(),
            scalars + 0.5,
            None,
            reward=scalars.float(),
            terminated=terminated,
            truncated=(torch.arange(ENVS) == 2) & (step == 4),
            final_value=torch.full((ENVS,), 99.0),
            views=views,
            mask=mask,
        )
    observations.append(rollout.get_observation())
    rollout.finish(torch.full((ENVS,), 77.0), None)
    return observations


@pytest.mark.parametrize("augmentation", get_args(Augmentation))
def test_a_minibatch_sees_the_views_that_were_acted_on(augmentation: Augmentation) -> None:
    rollout = make_rollout(DerivedViews(7, ((0, augmentation),)))
    observations = fill_rollout(rollout, first_step=40)
    rows = torch.arange(STEPS * ENVS)
    batch = rollout.get_minibatch(rows.flip(0))
    views = torch.cat([views for views, _ in observations[:-1]])
    assert views.shape == (STEPS * ENVS, 2, *IMAGE)
    assert torch.equal(batch.views.flip(0), views)
    assert not torch.equal(views[:, 0], views[:, 1])
    assert torch.equal(batch.action.flip(0), (10 * (rows // ENVS) + rows % ENVS))


def test_the_last_observation_starts_the_next_rollout() -> None:
    rollout = make_rollout()
    *_, (views, mask) = fill_rollout(rollout, first_step=40)
    rollout.reset(rollout.frames[STEPS].clone(), rollout.mask[STEPS].clone(), first_step=40 + STEPS)
    assert torch.equal(rollout.get_observation()[0][:, 0], views[:, 0])
    assert torch.equal(rollout.get_observation()[1], mask)


def test_a_derived_view_is_drawn_once_per_environment_and_rollout() -> None:
    """Equal images of one search set must stay equal, or r̂ would reward the draws."""
    rollout = make_rollout(DerivedViews(7, ((0, "crop"),)))
    image = torch.arange(16, dtype=torch.uint8).expand(ENVS, 1, *IMAGE)
    derived_views = []
    for first_step in (0, STEPS):
        fill_rollout(rollout, first_step=first_step)
        rollout.frames[:] = image
        views = rollout.get_minibatch(torch.arange(STEPS * ENVS)).views[:, 1].unflatten(0, (STEPS, ENVS))
        assert torch.equal(views, views[:1].expand_as(views))
        derived_views += list(views[0])
    assert len({view.numpy().tobytes() for view in derived_views}) > ENVS


def test_next_values_stop_at_episode_ends() -> None:
    rollout = make_rollout()
    fill_rollout(rollout)
    next_value = rollout.compute_next_value()
    expected = torch.tensor([[10 * (step + 1) + env + 0.5 for env in range(ENVS)] for step in range(STEPS)])
    expected[-1] = 77.0
    for env in range(ENVS):
        expected[env, env] = 0.0
    expected[4, 2] = 99.0
    assert torch.equal(next_value, expected)


def test_the_step_after_an_episode_end_is_no_next_step() -> None:
    rollout = make_rollout()
    observations = fill_rollout(rollout)
    rows = torch.arange(STEPS * ENVS)
    batch = rollout.get_minibatch(rows, with_next=True)
    assert batch.next_views is not None
    done = rollout.done.flatten()
    assert torch.equal(batch.has_next, ~done)
    assert int(done.sum()) == 4
    for row in rows.tolist():
        step, env = divmod(row, ENVS)
        expected = observations[step if done[row] else step + 1][0][env]
        assert torch.equal(batch.next_views[row], expected)


def test_computed_bytes_are_those_of_the_camera_frames() -> None:
    rollout = make_rollout(cameras=2)
    assert (
        RolloutBuffer.compute_bytes(num_steps=STEPS, num_envs=ENVS, image_shape=IMAGE, num_cameras=2)
        == rollout.frames.nbytes
    )


def test_derived_views_follow_the_cameras_and_are_absent_with_them() -> None:
    derived = DerivedViews(3, ((1, "flip"), (0, "cutout")))
    views, mask = make_images(0, cameras=2)
    mask[2, 1] = False
    draw, env = torch.tensor([4, 4, 9]), torch.arange(3)
    all_views, all_mask = derived(views, mask, draw_ids=draw, env_ids=env)
    assert torch.equal(all_views[:, :2], views)
    assert torch.equal(all_views[:2, 2], views[:2, 1].flip(-1))
    assert not all_views[2, 2].any()
    assert torch.equal(all_views[:, 3], augment(views[:, 0].contiguous(), derive_keys(3, draw, env) + 1, "cutout"))
    assert all_mask.tolist() == [[True, True, True, True], [True, True, True, True], [True, False, False, True]]
