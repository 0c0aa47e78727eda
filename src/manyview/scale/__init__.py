"""Sweeps of many runs, and runs with many actors, on Ray (extra `scale`). Single-process runs never import it."""
