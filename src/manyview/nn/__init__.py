"""Network parts that agents, representations and bonuses share: trunks, heads, optimizers, normalization."""
