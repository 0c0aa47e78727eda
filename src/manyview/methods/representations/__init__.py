"""Representations: encoders with an auxiliary loss, one file each."""
