"""Offscreen rendering of MuJoCo models."""
