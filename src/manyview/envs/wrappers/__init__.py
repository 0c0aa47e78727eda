"""Wrappers; inside out: output checks, faults, warnings, frame stack, call checks."""
