"""QUALITY C12: features in the bank can be compared with those of the current encoder."""

import pytest
import torch

from experiments.recording import VIEWS, Recording
from manyview.agents import SAC, SACConfig
from manyview.data import Batch
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.methods import MEMBonus, MEMBonusConfig
from quality.plugin import Figure

BATCH_SIZE, BANK_SIZE, ACTION_SIZE = 128, 2_048, 6  # batch and bank of the preset `cpu`
NUM_UPDATES, FIRST_UPDATE, UPDATE_INTERVAL = 400, 150, 50


def make_agent(recording: Recording, *, encoder_tau: float) -> SAC:
    """Return `sac+mem` of the preset `cpu`, with r̂ on the target encoder if there is one."""
    torch.manual_seed(0)
    config = MEMRepresentationConfig(trunk="small", latent_dim=32)
    mem = MEMRepresentation(VIEWS, recording.image_shape, config)
    bonus_config = MEMBonusConfig(
        bank=BANK_SIZE, entropy="joint", reward_scale="centered", target_encoder=encoder_tau < 1, beta0=0.6
    )
    bonus = MEMBonus(mem, bonus_config)
    agent_config = SACConfig(hidden=256, lr=3e-4, encoder_tau=encoder_tau)
    return SAC(
        mem, ACTION_SIZE, agent_config, bonus=bonus, beta=bonus_config, augmentation=ImageAugmentation("shift", 2)
    )


def make_batch(recording: Recording, generator: torch.Generator) -> Batch:
    """Return recorded states with random actions; the reward is the change of the first state variable."""
    indices = recording.sample(BATCH_SIZE, generator)
    mask = torch.ones(BATCH_SIZE, len(VIEWS), dtype=torch.bool)
    return Batch(
        views=recording.stack_frames(indices),
        mask=mask,
        action=2 * torch.rand(BATCH_SIZE, ACTION_SIZE, generator=generator) - 1,
        reward_ext=(recording.state[indices + 1, 0] - recording.state[indices, 0]).float(),
        discount=torch.full((BATCH_SIZE,), 0.99),
        next_views=recording.stack_frames(indices + 1),
        next_mask=mask,
        indices=indices,
        next_indices=indices + 1,
    )


def measure_drift(*, encoder_tau: float) -> list[float]:
    """Return the drift over the bank's age, every `UPDATE_INTERVAL` updates from `FIRST_UPDATE`."""
    recording, generator = Recording.load("cheetah_run"), torch.Generator().manual_seed(0)
    agent, drifts = make_agent(recording, encoder_tau=encoder_tau), []
    meter = agent.drift_meter
    assert meter is not None
    for update in range(1, NUM_UPDATES + 1):
        batch = make_batch(recording, generator)
        if (update - 1 + meter.compute_age(BATCH_SIZE)) % UPDATE_INTERVAL == 0:
            meter.store_encoder()
        agent.update(batch, update)
        if update >= FIRST_UPDATE and update % UPDATE_INTERVAL == 0:
            drifts.append(agent.compute_meters(batch)["drift"].item())
    return drifts


@pytest.mark.quality("C12")
@pytest.mark.long
def test_features_of_a_slow_encoder_can_be_compared_while_they_stay_in_the_bank(figure: Figure) -> None:
    drifts = measure_drift(encoder_tau=0.01)
    print("drift", *(f"{drift:.3f}" for drift in drifts))
    figure(max(drifts))
