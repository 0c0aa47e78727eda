"""Wrappers, from the inside out: output checks, faults, sanity warnings, frame stack, call checks."""
