"""Command-line interface: one module per subcommand; apart from `doctor`, they only parse and print."""
