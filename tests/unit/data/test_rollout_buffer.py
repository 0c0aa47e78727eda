"""A rollout gives back what was put in, and derived views are those that were acted on."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from manyview.data import DerivedViews, RolloutBuffer
from manyview.data.augmentation import Augmentation, augment
from manyview.utils.counter_rng import derive_keys

STEPS, ENVS, IMAGE = 5, 3, (3, 16, 16)
CUTOUT = DerivedViews(7, ((0, "cutout"),))


def rollout_of(derived: DerivedViews = CUTOUT, *, cameras: int = 1) -> RolloutBuffer:
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


def pictures(number: int, *, cameras: int = 1) -> tuple[Tensor, Tensor]:
    shape = (ENVS, cameras, *IMAGE)
    drawn = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
    return drawn, torch.ones(ENVS, cameras).bool()


def filled(rollout: RolloutBuffer, *, first_step: int = 0) -> list[tuple[Tensor, ...]]:
    """What was seen before each step. Numbers say where they belong: 10 t + e."""
    rollout.reset(*pictures(0), first_step=first_step)
    seen = []
    for step in range(STEPS):
        seen.append(rollout.get_observation())
        number = 10 * step + torch.arange(ENVS)
        views, mask = pictures(step + 1)
        ends = torch.arange(ENVS) == step  # environment e terminates in step e, and the last one's clock in step 4
        rollout.add(
            number,
            number.float(),
            number + 0.5,
            None,
            reward=number.float(),
            terminated=ends,
            truncated=(torch.arange(ENVS) == 2) & (step == 4),
            final_value=torch.full((ENVS,), 99.0),
            views=views,
            mask=mask,
        )
    seen.append(rollout.get_observation())
    rollout.finish(torch.full((ENVS,), 77.0), None)
    return seen


@pytest.mark.parametrize("how", get_args(Augmentation))
def test_a_minibatch_sees_the_views_that_were_acted_on(how: Augmentation) -> None:
    rollout = rollout_of(DerivedViews(7, ((0, how),)))
    seen = filled(rollout, first_step=40)
    every = torch.arange(STEPS * ENVS)
    batch = rollout.get_minibatch(every.flip(0))
    views = torch.cat([views for views, _ in seen[:-1]])
    assert views.shape == (STEPS * ENVS, 2, *IMAGE)
    assert torch.equal(batch.views.flip(0), views)
    assert not torch.equal(views[:, 0], views[:, 1])
    assert torch.equal(batch.action.flip(0), (10 * (every // ENVS) + every % ENVS))


def test_what_comes_next_begins_the_next_rollout() -> None:
    rollout = rollout_of()
    *_, (views, mask) = filled(rollout, first_step=40)
    rollout.reset(rollout.frames[STEPS].clone(), rollout.mask[STEPS].clone(), first_step=40 + STEPS)
    assert torch.equal(rollout.get_observation()[0][:, 0], views[:, 0])
    assert torch.equal(rollout.get_observation()[1], mask)


def test_what_is_random_about_a_view_is_drawn_once_for_an_environment_and_a_rollout() -> None:
    """Equal pictures in the rows that r̂ is searched among must look equal, or it pays for the draws."""
    rollout = rollout_of(DerivedViews(7, ((0, "crop"),)))
    same = torch.arange(16, dtype=torch.uint8).expand(ENVS, 1, *IMAGE)
    changed = []
    for first_step in (0, STEPS):
        filled(rollout, first_step=first_step)
        rollout.frames[:] = same
        views = rollout.get_minibatch(torch.arange(STEPS * ENVS)).views[:, 1].unflatten(0, (STEPS, ENVS))
        assert torch.equal(views, views[:1].expand_as(views))
        changed += list(views[0])
    assert len({view.numpy().tobytes() for view in changed}) > ENVS


def test_the_value_of_what_follows_stops_at_ends() -> None:
    rollout = rollout_of()
    filled(rollout)
    found = rollout.compute_next_value()
    expected = torch.tensor([[10 * (step + 1) + env + 0.5 for env in range(ENVS)] for step in range(STEPS)])
    expected[-1] = 77.0
    for env in range(ENVS):
        expected[env, env] = 0.0
    expected[4, 2] = 99.0
    assert torch.equal(found, expected)


def test_the_step_after_an_end_is_not_the_next_of_the_same_episode() -> None:
    rollout = rollout_of()
    seen = filled(rollout)
    rows = torch.arange(STEPS * ENVS)
    batch = rollout.get_minibatch(rows, with_next=True)
    assert batch.next_views is not None
    ended = rollout.done.flatten()
    assert torch.equal(batch.has_next, ~ended)
    assert int(ended.sum()) == 4
    for row in rows.tolist():
        step, env = divmod(row, ENVS)
        expected = seen[step if ended[row] else step + 1][0][env]
        assert torch.equal(batch.next_views[row], expected)


def test_bytes_are_those_of_the_cameras_frames() -> None:
    rollout = rollout_of(cameras=2)
    assert (
        RolloutBuffer.compute_bytes(num_steps=STEPS, num_envs=ENVS, image_shape=IMAGE, num_cameras=2)
        == rollout.frames.nbytes
    )


def test_derived_views_follow_the_cameras_and_are_absent_with_them() -> None:
    derived = DerivedViews(3, ((1, "flip"), (0, "cutout")))
    views, mask = pictures(0, cameras=2)
    mask[2, 1] = False
    draw, env = torch.tensor([4, 4, 9]), torch.arange(3)
    seen, present = derived(views, mask, draw_ids=draw, env_ids=env)
    assert torch.equal(seen[:, :2], views)
    assert torch.equal(seen[:2, 2], views[:2, 1].flip(-1))
    assert not seen[2, 2].any()
    assert torch.equal(seen[:, 3], augment(views[:, 0].contiguous(), derive_keys(3, draw, env) + 1, "cutout"))
    assert present.tolist() == [[True, True, True, True], [True, True, True, True], [True, False, False, True]]
