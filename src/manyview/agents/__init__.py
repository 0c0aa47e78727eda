"""Agents: DrQ-v2, SAC and PPO, one file each, on any representation and with any bonus."""

from manyview.agents.base import Agent
from manyview.agents.drqv2 import DrQv2, DrQv2Config
from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.off_policy_config import OffPolicyConfig
from manyview.agents.on_policy import OnPolicyAgent, OnPolicyConfig
from manyview.agents.ppo import PPO, PPOConfig
from manyview.agents.sac import SAC, SACConfig
from manyview.data.action_spec import ActionSpec
from manyview.nn.optim import NonFiniteError

__all__ = [
    "PPO",
    "SAC",
    "ActionSpec",
    "Agent",
    "DrQv2",
    "DrQv2Config",
    "NonFiniteError",
    "OffPolicyAgent",
    "OffPolicyConfig",
    "OnPolicyAgent",
    "OnPolicyConfig",
    "PPOConfig",
    "SACConfig",
]
