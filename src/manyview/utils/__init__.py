"""Helpers without a domain of their own; every other package may import them."""
