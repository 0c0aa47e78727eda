"""Meters of the networks: drift of the bonus's features, dormant units of actor and critics."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyview.agents.drift import DriftMeter, compute_stored_drift
from manyview.data import Batch
from manyview.mem import EntropyBonus, EntropyBonusConfig, Features
from manyview.training import make_trainer
from tests.support.batches import make_agent, make_batch
from tests.support.runs import make_short_config, make_short_rollout_config

ROWS, VIEWS, DIM = 12, 2, 3
POSITIONS = torch.arange(ROWS).float()


def make_features(positions: Tensor, *, offset: float = 0.0, mask: Tensor | None = None) -> Features:
    """Return features on a line: every term of a row is (position, offset, 0)."""
    mask = torch.ones(len(positions), VIEWS, dtype=torch.bool) if mask is None else mask
    point = torch.stack([positions, torch.full_like(positions, offset), torch.zeros_like(positions)], 1)  # [B, P]
    specific = torch.where(mask.unsqueeze(-1), point.unsqueeze(1), 0.0)  # [B, V, P]
    return Features(specific, specific, point, torch.cat([specific.flatten(1), point], 1), mask)


class LineEncoder(nn.Module):
    """Linear toy encoder: the position of a row is its first pixel times a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Features:
        return make_features(self.gain * views[:, 0, 0, 0, 0].float(), mask=mask)


class LineBonus(nn.Module):
    """MEM's r̂ on the toy encoder."""

    bank_size = 40

    def __init__(self, k: int) -> None:
        super().__init__()
        self.encoder, self.entropy = LineEncoder(), EntropyBonus(VIEWS, DIM, EntropyBonusConfig(k=k, bank=0))
        self.compute_drift = self.entropy.compute_drift


@pytest.mark.parametrize("entropy", ["marginal", "joint"])
def test_drift_is_the_motion_in_units_of_the_neighbor_distance(entropy: Any) -> None:
    """Rows on a line at distance 1 move by 0.3; the second neighbor of an end is 2 away."""
    bonus = EntropyBonus(VIEWS, DIM, EntropyBonusConfig(k=2, entropy=entropy, bank=0))
    drift = bonus.compute_drift(make_features(POSITIONS), make_features(POSITIONS, offset=0.3))
    assert drift.item() == pytest.approx(0.3 / ((ROWS - 2 + 2 * 2) / ROWS), rel=1e-5)


def test_the_neighbors_of_drift_are_searched_in_the_bank_too() -> None:
    bonus = EntropyBonus(VIEWS, DIM, EntropyBonusConfig(k=1, bank=ROWS))
    assert bonus.bank is not None
    bonus.bank.push(make_features(POSITIONS, offset=0.25), torch.arange(ROWS) + 100)
    drift = bonus.compute_drift(
        make_features(POSITIONS), make_features(POSITIONS, offset=0.5), indices=torch.arange(ROWS)
    )
    assert drift.item() == pytest.approx(0.5 / 0.25, rel=1e-5)


def test_absent_views_do_not_count_in_drift() -> None:
    """The first view is present in three rows, which have moved twice as far as the others."""
    mask = torch.ones(ROWS, VIEWS, dtype=torch.bool)
    mask[3:, 0] = False
    features, past = make_features(POSITIONS, mask=mask), make_features(POSITIONS, offset=0.1, mask=mask)
    moved_features = past._replace(specific=past.specific.clone())
    moved_features.specific[:3, 0, 1] = 0.2
    drift = EntropyBonus(VIEWS, DIM, EntropyBonusConfig(k=1, bank=0)).compute_drift(features, moved_features)
    assert drift.item() == pytest.approx((3 * 0.2 + 2 * ROWS * 0.1) / (3 + 2 * ROWS), rel=1e-5)


def test_a_meter_compares_the_encoder_with_the_one_that_was_stored() -> None:
    bonus = LineBonus(k=1)
    meter = DriftMeter(bonus.encoder, bonus)
    views = torch.arange(ROWS, dtype=torch.uint8).view(-1, 1, 1, 1, 1).expand(-1, VIEWS, 3, 4, 4)
    mask = torch.ones(ROWS, VIEWS, dtype=torch.bool)
    bonus.encoder.gain.data.fill_(2.0)
    meter.store_encoder()
    assert meter.measure(views, mask).item() == 0
    bonus.encoder.gain.data.fill_(2.5)  # row i moves from 2 i to 2.5 i, and its neighbors are 2.5 away
    assert meter.measure(views, mask).item() == pytest.approx(0.5 * POSITIONS.mean().item() / 2.5, rel=1e-5)
    assert bonus.encoder.gain.item() == 2.5
    assert not any(parameter.requires_grad for parameter in meter.past_encoder.parameters())


@pytest.mark.parametrize(("rows", "age"), [(64, 1), (40, 1), (39, 2), (8, 5)])
def test_the_bank_is_as_old_as_the_batches_it_holds(rows: int, age: int) -> None:
    bonus = LineBonus(k=1)
    assert DriftMeter(bonus.encoder, bonus).compute_age(rows) == age


@pytest.mark.parametrize(("bank", "age"), [(8, 1), (20, 3), (400, 5)])
def test_a_logged_drift_spans_the_age_of_the_bank_at_most_the_log_interval(bank: int, age: int) -> None:
    """Batches have 8 rows, and every fifth update is logged."""
    trainer: Any = make_trainer(make_short_config("drqv2+mem", bonus={"bank": bank}))
    encoders, num_logged = [], 0
    meter = trainer.agent.drift_meter
    while not trainer.is_done:
        before = [parameter.detach().clone() for parameter in trainer.agent.representation.parameters()]
        if trainer.advance().metrics is None:
            continue
        encoders.append(before)
        if trainer.should_log:
            num_logged += 1
            past = list(meter.past_encoder.parameters())
            assert all(torch.equal(*pair) for pair in zip(past, encoders[-age], strict=True))
            state = trainer.agent.get_state()
            assert trainer.compute_diagnostics()["drift"] > 0
            after = trainer.agent.get_state()
            assert all(torch.equal(tensor, after["tensors"][name]) for name, tensor in state["tensors"].items())
    trainer.close()
    assert num_logged >= 5


def test_a_resumed_run_logs_the_same_drift() -> None:
    """The state is saved between the copy of the encoder and the log that uses it."""
    trainers: list[Any] = [make_trainer(make_short_config("sac+mem", bonus={"bank": 20})) for _ in range(2)]
    trainer, resumed = trainers
    while trainer.counters.updates % 5 != 3 or trainer.counters.updates < 8:
        trainer.advance()
    resumed.agent.load_state(trainer.agent.get_state())
    meters, data = [], trainer.last_batch
    for instance in trainers:
        instance.agent.update(data, 10)
        meters.append(instance.agent.compute_meters(data))
        instance.close()
    assert meters[0] == meters[1]
    assert meters[0]["drift"] > 0


def test_drift_is_that_of_the_encoder_which_the_bonus_uses() -> None:
    separate: Any = make_agent("drqv2", "pixel+mem", bonus_changes={"bank": 8})
    assert separate.drift_meter.encoder is separate.bonus.encoder is not separate.representation
    shared: Any = make_agent("drqv2", "mem", bonus_changes={"bank": 8})
    assert shared.drift_meter.encoder is shared.representation
    target: Any = make_agent(
        "sac", "mem", reward_frames="augmented", bonus_changes={"bank": 8, "target_encoder": True}, encoder_tau=0.1
    )
    assert target.drift_meter.encoder is target.target_representation is not target.representation
    data = make_batch()
    target.drift_meter.store_encoder()
    for parameter in target.representation.parameters():
        parameter.data.add_(1.0)
    assert target.compute_meters(data)["drift"] == 0


@pytest.mark.parametrize("method", ["re3", "none", "mem"])
def test_without_a_bank_there_is_no_drift(method: str) -> None:
    agent: Any = make_agent("drqv2", method, bonus_changes={"bank": 0} if method == "mem" else None)
    data = make_batch()
    assert set(agent.compute_meters(data)) == {"dormant_actor", "dormant_critic"}


def make_stored_batch(distances: Tensor, *, moved_by: float) -> tuple[Tensor, Batch]:
    """Return features [B, V + 1, P] and a batch with shifted ones and two absent views."""
    mask = torch.ones(ROWS, VIEWS, dtype=torch.bool)
    mask[:2, 0] = False
    features = make_features(POSITIONS).terms
    stored = make_features(POSITIONS, offset=moved_by).terms.clone()
    stored[:2, 0] += 100.0  # must not count: the view is absent
    data = make_batch(ROWS)._replace(mask=mask, neighbor_distances=distances, stored_features=stored)
    return features, data


@pytest.mark.parametrize("state", ["current", "next"])
def test_stored_features_drift_by_their_motion_since_they_were_stored(state: Any) -> None:
    distances = torch.full((ROWS, VIEWS + 1, 2), 100.0)
    distances[..., -1] = 2.0
    distances[3, 1, -1] = 50.0
    features, data = make_stored_batch(distances, moved_by=0.3)
    num_searched = 3 * ROWS - (2 if state == "current" else 0)  # the next state has all views
    expected = 0.3 / ((2.0 * (num_searched - 1) + 50.0) / num_searched)
    if state == "current":
        data.neighbor_distances[:2, 0] = 0.0  # type: ignore[index]  # as a search returns for absent views
    assert compute_stored_drift(features, data, state).item() == pytest.approx(expected, rel=1e-5)


def test_stored_features_of_a_joint_search_drift_as_one_vector() -> None:
    features, data = make_stored_batch(torch.full((ROWS, 1, 2), 4.0), moved_by=0.3)
    expected = 0.3 * (2 * 2**0.5 + (ROWS - 2) * 3**0.5) / ROWS / 4.0  # two rows have two terms, the others three
    assert compute_stored_drift(features, data, "current").item() == pytest.approx(expected, rel=1e-5)


def test_a_run_that_searches_the_buffer_logs_how_far_its_encoder_has_moved() -> None:
    """The stored features are those of the encoder that stored them, and age with every update."""
    trainer: Any = make_trainer(make_short_config("drqv2+mem", bonus={"bank": 0, "search": "buffer"}))
    while not trainer.should_update:
        trainer.collector.step()
    data = trainer.sampler.sample()
    assert trainer.agent.compute_meters(data)["drift"] == pytest.approx(0, abs=1e-4)
    for _ in range(5):
        trainer.update()
    data = trainer.last_batch
    features = trainer.agent.representation.encode(data.views, data.mask).terms
    motion = [
        (features[row, term].double() - torch.from_numpy(trainer.replay.features[index])[term].double()).norm().item()
        for row, index in enumerate(data.indices.tolist())
        for term in range(features.shape[1])
    ]
    expected = sum(motion) / len(motion) / data.neighbor_distances[..., -1].mean().item()
    assert expected > 1e-3
    assert trainer.compute_diagnostics()["drift"] == pytest.approx(expected, rel=1e-4)
    trainer.close()


def test_the_features_of_a_frozen_encoder_do_not_drift() -> None:
    trainer: Any = make_trainer(make_short_config("drqv2+re3"))
    while trainer.advance().metrics is None:
        pass
    assert trainer.last_batch.stored_features is not None
    assert set(trainer.compute_diagnostics()) == {"dormant_actor", "dormant_critic"}
    trainer.close()


def find_dormant_units(layers: list[nn.Linear], inputs: Tensor) -> list[bool]:
    """Return for each hidden unit whether its mean output is at most 0.025 of the layer's."""
    dormant = []
    for layer in layers:
        inputs = (inputs @ layer.weight.T + layer.bias).clamp(min=0)
        means = [column.mean().item() for column in inputs.T]
        dormant += [mean <= 0.025 * sum(means) / len(means) for mean in means]
    return dormant


@torch.no_grad()
@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_dormant_units_are_counted_in_actor_and_both_critics(kind: str) -> None:
    agent, data = make_agent(kind, "none"), make_batch()
    critics: Any = agent.critic.heads
    for head, count in ((agent.actor, 10), (critics[0], 4), (critics[1], 20)):
        layer: Any = head[2]
        layer.weight[:count], layer.bias[:count] = 0.0, -1.0
    state = agent.representation.encode(data.views, data.mask).state
    meters = agent.compute_meters(data)
    actor_units = find_dormant_units([agent.actor[0], agent.actor[2]], state)  # type: ignore[list-item]
    critic_units = [
        dormant
        for head in critics
        for dormant in find_dormant_units([head[0], head[2]], torch.cat([state, data.action], 1))
    ]
    assert meters["dormant_actor"].item() == pytest.approx(sum(actor_units) / 64)
    assert sum(actor_units) >= 10
    assert meters["dormant_critic"].item() == pytest.approx(sum(critic_units) / 128)
    assert sum(critic_units) >= 24


def test_records_of_every_agent_have_the_dormant_shares() -> None:
    for config in (make_short_config("sac+none"), make_short_rollout_config("ppo+none")):
        trainer = make_trainer(config)
        assert trainer.compute_diagnostics() == {}, "before the first update"
        while trainer.advance().metrics is None:
            pass
        values = trainer.compute_diagnostics()
        trainer.close()
        assert set(values) == {"dormant_actor", "dormant_critic"}
        assert all(0 <= value < 1 for value in values.values())
