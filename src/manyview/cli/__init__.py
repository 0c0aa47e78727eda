"""The command `manyview`: one file per subcommand, no logic of its own beyond the check of an installation."""
