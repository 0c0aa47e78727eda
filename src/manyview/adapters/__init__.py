"""MEM in other frameworks: `sb3` (Stable-Baselines3), `torchrl` (TorchRL) and `rllib` (RLlib).

Each module needs its framework, which the extra of the same name installs.
"""
