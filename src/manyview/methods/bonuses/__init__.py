"""Bonuses: intrinsic rewards, one file each."""
