"""Reports on runs: states, learning curves and evaluations of saved policies.

Listing and plotting runs only reads their files, without torch, and works for runs of other versions.
"""
