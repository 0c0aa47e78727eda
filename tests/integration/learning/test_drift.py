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

ROWS, BANK, ACTIONS = 128, 2_048, 6  # batch and bank of the preset `cpu`
UPDATES, FIRST, EVERY = 400, 150, 50


def make_agent(recording: Recording, *, encoder_tau: float) -> SAC:
    """Return `sac+mem` of the preset `cpu`, with r̂ on the target encoder if there is one."""
    torch.manual_seed(0)
    config = MEMRepresentationConfig(trunk="small", latent_dim=32)
    mem = MEMRepresentation(VIEWS, recording.image_shape, config)
    bonus_config = MEMBonusConfig(
        bank=BANK, entropy="joint", reward_scale="centered", target_encoder=encoder_tau < 1, beta0=0.6
    )
    bonus = MEMBonus(mem, bonus_config)
    agent_config = SACConfig(hidden=256, lr=3e-4, encoder_tau=encoder_tau)
    return SAC(mem, ACTIONS, agent_config, bonus=bonus, beta=bonus_config, augmentation=ImageAugmentation("shift", 2))


def make_batch(recording: Recording, generator: torch.Generator) -> Batch:
    """Return recorded states with random actions, rewarded by the change of the first physical quantity."""
    rows = recording.sample(ROWS, generator)
    mask = torch.ones(ROWS, len(VIEWS), dtype=torch.bool)
    return Batch(
        views=recording.stack_frames(rows),
        mask=mask,
        action=2 * torch.rand(ROWS, ACTIONS, generator=generator) - 1,
        reward_ext=(recording.state[rows + 1, 0] - recording.state[rows, 0]).float(),
        discount=torch.full((ROWS,), 0.99),
        next_views=recording.stack_frames(rows + 1),
        next_mask=mask,
        indices=rows,
        next_indices=rows + 1,
    )


def measure_drift(*, encoder_tau: float) -> list[float]:
    """Return the drift over the bank's age at every `EVERY`-th update from `FIRST` on."""
    recording, generator = Recording.load("cheetah_run"), torch.Generator().manual_seed(0)
    agent, drifts = make_agent(recording, encoder_tau=encoder_tau), []
    meter = agent.drift_meter
    assert meter is not None
    for update in range(1, UPDATES + 1):
        batch = make_batch(recording, generator)
        if (update - 1 + meter.compute_age(ROWS)) % EVERY == 0:
            meter.store_encoder()
        agent.update(batch, update)
        if update >= FIRST and update % EVERY == 0:
            drifts.append(agent.compute_meters(batch)["drift"].item())
    return drifts


@pytest.mark.quality("C12")
@pytest.mark.long
def test_features_of_a_slow_encoder_can_be_compared_while_they_stay_in_the_bank(figure: Figure) -> None:
    drifts = measure_drift(encoder_tau=0.01)
    print("drift", *(f"{drift:.3f}" for drift in drifts))
    figure(max(drifts))
