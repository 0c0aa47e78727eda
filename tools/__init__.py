"""Generators of the figures in docs and of recorded test data. Nothing here is shipped."""
