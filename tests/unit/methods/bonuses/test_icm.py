"""ICM against a reference implementation in float64."""

import math
from typing import Any

import pytest
import torch

from manyview.data import Batch
from manyview.methods import ICM, ICMConfig
from manyview.training import make_trainer
from manyview.utils.validation import SettingError
from tests.support.batches import make_agent, make_batch
from tests.support.dynamics import MODEL_SIZES, build_bonus, compute_errors, copy_to_float64, make_masked_batch
from tests.support.runs import make_short_rollout_config


def make_icm(**changes: Any) -> ICM:
    return build_bonus(ICM, ICMConfig(**MODEL_SIZES, **changes))


def test_the_bonus_is_the_log_of_the_forward_error_over_common_views() -> None:
    icm, data = make_icm(error_scale=2.5), make_masked_batch()
    errors, _ = compute_errors(copy_to_float64(icm), data)
    expected = torch.tensor([math.log(1 + 2.5 * error) for error in errors.tolist()])
    assert (expected == 0).any(), "a row whose states have no view in common pays nothing"
    actual = icm.compute(data, None, data.reward_ext)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not actual.requires_grad


def test_a_running_std_divides_the_bonus() -> None:
    icm, data = make_icm(reward_scale="std"), make_batch(16)
    raw = make_icm().compute(data, None, data.reward_ext)
    expected = raw / raw.std(correction=0)
    torch.testing.assert_close(icm.compute(data, None, data.reward_ext), expected, rtol=1e-4, atol=1e-4)


def test_encoder_and_both_models_take_adams_steps_on_both_errors() -> None:
    icm = make_icm(forward_coef=0.7, inverse_coef=1.3)
    reference = copy_to_float64(icm)
    adam = torch.optim.Adam(reference.parameters(), lr=MODEL_SIZES["lr"])
    for seed in range(3):
        data = make_masked_batch(8, seed=seed)
        forward, inverse = (errors.mean() for errors in compute_errors(reference, data))
        adam.zero_grad()
        (0.7 * forward + 1.3 * inverse).backward()
        gradient = math.sqrt(sum(float(part.grad.square().sum()) for part in reference.parameters()))
        adam.step()
        metrics = icm.update(data)
        assert metrics["icm_forward_loss"].item() == pytest.approx(forward.item(), rel=1e-4)
        assert metrics["icm_inverse_loss"].item() == pytest.approx(inverse.item(), rel=1e-4)
        assert metrics["icm_grad_norm"].item() == pytest.approx(gradient, rel=1e-3)
    for actual, expected in zip(icm.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(actual, expected.float(), rtol=1e-3, atol=3e-4)


def test_learned_transitions_have_a_smaller_bonus() -> None:
    icm, known, new = make_icm(inverse_coef=0.1), make_batch(8, seed=0), make_batch(8, seed=1)
    for _ in range(200):
        icm.update(known)
    known_bonus, new_bonus, swapped_bonus = (
        icm.compute(data, None, data.reward_ext).mean()
        for data in (known, new, known._replace(next_views=known.next_views.roll(1, 0)))
    )
    assert known_bonus < 0.6 * new_bonus
    assert known_bonus < 0.6 * swapped_bonus, "another next state of known states is a surprise"


@pytest.mark.parametrize("method", ["icm", "apt"])
def test_bonus_updates_do_not_change_the_policy(method: str) -> None:
    agent: Any = make_agent("sac", method, bonus_changes={"hidden": 16, "latent_dim": 4})
    before = [part.clone() for part in agent.representation.parameters()]
    for _ in range(3):
        agent.update_bonus(make_batch())
    assert all(map(torch.equal, before, agent.representation.parameters()))
    assert all(part.grad is None for part in (*agent.representation.parameters(), *agent.actor.parameters()))


def test_rollout_bonuses_are_zero_at_the_end_of_an_episode() -> None:
    config = make_short_rollout_config("ppo+icm", rollout={"steps": 40}, bonus={"reward_scale": "raw"})
    trainer: Any = make_trainer(config)
    while not trainer.num_pending_updates:
        trainer.advance()
    icm, rollout, done = trainer.agent.bonus, trainer.rollout, trainer.rollout.done
    assert done.any()
    bonuses = icm.compute_rollout(rollout, None, window=None)
    for row in range(0, done.numel(), 7):
        step, env = divmod(row, rollout.num_envs)
        (views, mask), (next_views, next_mask) = (
            rollout._get_views(torch.tensor([row + offset])) for offset in (0, rollout.num_envs)
        )
        one_hot = torch.eye(icm.actions.size)[rollout.action[step, env]].unsqueeze(0)
        zeros = torch.zeros(1)
        data = Batch(views, mask, one_hot, zeros, zeros, next_views, next_mask, zeros.long(), zeros.long())
        expected = 0.0 if done[step, env] else math.log1p(compute_errors(copy_to_float64(icm), data)[0].item())
        assert bonuses[step, env].item() == pytest.approx(expected, abs=1e-4)
    assert (bonuses[done] == 0).all()
    assert (bonuses[~done] > 0).all()
    trainer.close()


def test_discrete_actions_are_predicted_by_cross_entropy() -> None:
    trainer: Any = make_trainer(make_short_rollout_config("ppo+icm"))
    while not trainer.num_pending_updates:
        trainer.advance()
    icm, data = trainer.agent.bonus, trainer.rollout.get_minibatch(torch.arange(12), with_next=True)
    trainer.close()
    data = data._replace(has_next=torch.arange(12) % 3 > 0)
    with torch.no_grad():
        states = torch.cat(
            [icm.encode(data.views, data.mask).state, icm.encode(data.next_views, data.next_mask).state], 1
        )
        logits = icm.inverse_model(states).double()
    terms = [
        math.log(sum(math.exp(x) for x in row)) - float(row[action])
        for row, action in zip(logits.tolist(), data.action.tolist(), strict=True)
    ]
    valid_terms = [term for term, has_next in zip(terms, data.has_next.tolist(), strict=True) if has_next]
    assert icm.update(data)["icm_inverse_loss"].item() == pytest.approx(sum(valid_terms) / len(valid_terms), rel=1e-4)


def test_another_rewarded_state_is_refused() -> None:
    with pytest.raises(SettingError, match="expected current, since r̂ is of a whole transition, got next"):
        ICMConfig(rewarded_state="next")
