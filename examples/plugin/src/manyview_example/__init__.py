"""Example of a package that adds a bonus, a representation and a suite to manyview."""
