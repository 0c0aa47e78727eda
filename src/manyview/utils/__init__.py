"""General helpers that every other package may import."""
