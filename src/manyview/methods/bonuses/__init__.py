"""Bonuses: intrinsic rewards for exploration, one file each."""
