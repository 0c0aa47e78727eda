"""Representations: encoders of the policy with their auxiliary losses, one file each."""
