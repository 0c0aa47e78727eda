"""CURL: the contrastive loss between two random shifts, and the key encoder."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from manyview.methods import CURL, CURLConfig
from tests.support.batches import make_agent, make_batch

IMAGE_SHAPE = (3, 20, 20)


def test_the_loss_is_the_cross_entropy_of_the_key_of_the_same_row() -> None:
    torch.manual_seed(0)
    curl = CURL(2, IMAGE_SHAPE, CURLConfig(trunk="tiny", latent_dim=8, shift_pixels=0))
    torch.nn.init.normal_(curl.encoder.absent_token)
    for parameter in curl.key_encoder.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    views, mask = torch.randint(256, (6, 2, *IMAGE_SHAPE), dtype=torch.uint8), torch.arange(12).view(6, 2) % 3 > 0
    features = curl.encode(views, mask)
    loss, _ = curl.compute_loss(features, features)
    with torch.no_grad():
        logits = features.state @ curl.similarity @ curl.key_encoder.encode(views, mask).state.T
    torch.testing.assert_close(loss.detach(), F.cross_entropy(logits, torch.arange(6)))


@pytest.mark.parametrize("agent_name", ["drqv2", "sac"])
def test_the_key_encoder_follows_the_encoder_after_each_update(agent_name: str) -> None:
    agent = make_agent(agent_name, "curl")
    curl: Any = agent.representation
    before = [parameter.clone() for parameter in curl.key_encoder.parameters()]
    agent.update(make_batch(), 0)
    has_changed = False
    for old, new, online in zip(before, curl.key_encoder.parameters(), curl.encoder.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.05 * (online - old))
        has_changed |= not new.equal(old)
    assert has_changed


def test_keys_have_another_random_shift() -> None:
    curl = CURL(2, IMAGE_SHAPE, CURLConfig(trunk="tiny", latent_dim=8, shift_pixels=4, tau=0.0))
    features = curl.encode(torch.randint(256, (6, 2, *IMAGE_SHAPE), dtype=torch.uint8))
    assert curl.compute_loss(features, features)[0] != curl.compute_loss(features, features)[0]


def test_similarities_stay_float32_under_bfloat16_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    curl = CURL(2, IMAGE_SHAPE, CURLConfig(trunk="tiny", latent_dim=8))
    features = curl.encode(torch.randint(256, (6, 2, *IMAGE_SHAPE), dtype=torch.uint8))
    monkeypatch.setattr(curl.key_encoder, "encode", lambda *_: features)
    expected, _ = curl.compute_loss(features, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, _ = curl.compute_loss(features, features)
    assert actual.equal(expected)
