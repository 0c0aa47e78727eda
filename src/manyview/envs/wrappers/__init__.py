"""What lies around an environment, from the inside out: checks, faults, sanity, frame stack, boundary."""
