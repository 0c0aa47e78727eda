"""CURL: a contrastive loss between two shifts of the same pictures, one of them seen by a slow copy."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from manyview.methods import CURL, CURLConfig
from tests.support.batches import make_agent, make_batch

IMAGE = (3, 20, 20)


def test_the_loss_is_naming_ones_own_key_among_the_batchs() -> None:
    torch.manual_seed(0)
    curl = CURL(2, IMAGE, CURLConfig(trunk="tiny", latent_dim=8, shift_pixels=0))
    torch.nn.init.normal_(curl.encoder.absent_token)
    for parameter in curl.key_encoder.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    views, mask = torch.randint(256, (6, 2, *IMAGE), dtype=torch.uint8), torch.arange(12).view(6, 2) % 3 > 0
    features = curl.encode(views, mask)
    loss, _ = curl.compute_loss(features, features)
    with torch.no_grad():
        logits = features.state @ curl.similarity @ curl.key_encoder.encode(views, mask).state.T
    torch.testing.assert_close(loss.detach(), F.cross_entropy(logits, torch.arange(6)))


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_the_key_encoder_follows_the_encoder_after_each_update(kind: str) -> None:
    learner = make_agent(kind, "curl")
    curl: Any = learner.representation
    before = [parameter.clone() for parameter in curl.key_encoder.parameters()]
    learner.update(make_batch(), 0)
    moved = False
    for old, new, online in zip(before, curl.key_encoder.parameters(), curl.encoder.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.05 * (online - old))
        moved |= not new.equal(old)
    assert moved


def test_its_key_is_of_another_shift() -> None:
    curl = CURL(2, IMAGE, CURLConfig(trunk="tiny", latent_dim=8, shift_pixels=4, tau=0.0))
    features = curl.encode(torch.randint(256, (6, 2, *IMAGE), dtype=torch.uint8))
    assert curl.compute_loss(features, features)[0] != curl.compute_loss(features, features)[0]


def test_similarities_stay_float32_where_the_encoder_computes_in_less(monkeypatch: pytest.MonkeyPatch) -> None:
    curl = CURL(2, IMAGE, CURLConfig(trunk="tiny", latent_dim=8))
    features = curl.encode(torch.randint(256, (6, 2, *IMAGE), dtype=torch.uint8))
    monkeypatch.setattr(curl.key_encoder, "encode", lambda *_: features)
    exact, _ = curl.compute_loss(features, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = curl.compute_loss(features, features)
    assert found.equal(exact)
