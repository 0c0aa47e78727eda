"""Run configs: their schema, overrides and presets."""
