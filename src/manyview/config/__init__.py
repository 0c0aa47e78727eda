"""Run configs: schema, presets, overrides and their resolution from command-line arguments."""
