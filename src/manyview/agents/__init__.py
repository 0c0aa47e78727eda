"""DrQ-v2 and SAC, one file each, on any representation and intrinsic reward."""

from manyview.agents.drqv2 import DrQv2, DrQv2Config
from manyview.agents.networks import NonFiniteError
from manyview.agents.off_policy import OffPolicyAgent
from manyview.agents.sac import SAC, SACConfig

__all__ = ["SAC", "DrQv2", "DrQv2Config", "NonFiniteError", "OffPolicyAgent", "SACConfig"]
