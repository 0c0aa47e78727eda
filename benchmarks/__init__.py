"""Measurements of performance and robustness. Nothing here is shipped."""
