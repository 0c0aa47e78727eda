"""From a run to a robot: what each camera is worth."""
