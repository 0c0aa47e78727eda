"""DrQ-v2, SAC and PPO, one file each, on any representation and intrinsic reward."""

from manyview.agents.agent import Agent
from manyview.agents.drqv2 import DrQv2, DrQv2Config
from manyview.agents.networks import NonFiniteError
from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.policies import ActionSpec
from manyview.agents.ppo import PPO, PPOConfig
from manyview.agents.sac import SAC, SACConfig

__all__ = [
    "PPO",
    "SAC",
    "ActionSpec",
    "Agent",
    "DrQv2",
    "DrQv2Config",
    "NonFiniteError",
    "OffPolicyAgent",
    "PPOConfig",
    "SACConfig",
]
