"""Shared network parts: trunks, heads, optimizers, target networks, normalization."""
