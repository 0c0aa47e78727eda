"""Target networks: copies, soft updates and buffers."""

import torch
from torch import nn

from manyview.nn.soft_update import make_target, soft_update


def test_a_target_is_a_copy_without_gradient_in_the_same_mode() -> None:
    online = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).eval()
    target = make_target(online)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    assert all(parameter.requires_grad for parameter in online.parameters())
    assert not any(module.training for module in target.modules())
    assert make_target(nn.Dropout()).training
    for online_parameter, target_parameter in zip(online.parameters(), target.parameters(), strict=True):
        assert torch.equal(online_parameter, target_parameter)
        assert online_parameter.data_ptr() != target_parameter.data_ptr()


def test_soft_updates_equal_the_closed_form() -> None:
    online, tau = nn.Linear(3, 2), 0.1
    target = make_target(online)
    start = target.weight.double()
    with torch.no_grad():
        online.weight.add_(1)
    for _ in range(5):
        soft_update(online, target, tau)
    torch.testing.assert_close(target.weight, (start + 1 - (1 - tau) ** 5).float())


def test_soft_updates_leave_the_buffers_of_the_target() -> None:
    online = nn.BatchNorm1d(2)
    target = make_target(online)
    with torch.no_grad():
        online.weight.add_(1)
    online(torch.randn(8, 2) + 5)
    soft_update(online, target, 1.0)
    assert torch.equal(target.weight, online.weight)
    assert not target.get_buffer("running_mean").any()
    assert online.get_buffer("running_mean").all()


def test_a_network_without_parameters_is_accepted() -> None:
    soft_update(nn.Flatten(), make_target(nn.Flatten()), 0.1)
