"""Benchmarks of performance and robustness. They are not part of the package."""
