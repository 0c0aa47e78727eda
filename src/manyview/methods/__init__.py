"""Representations and intrinsic rewards behind two protocols; MEM, which is both, has a room of its own."""

from manyview.methods.curl import CURL
from manyview.methods.plain import Plain
from manyview.methods.protocols import Adversarial, Encoded, Intrinsic, Representation
from manyview.methods.re3 import RE3

__all__ = ["CURL", "RE3", "Adversarial", "Encoded", "Intrinsic", "Plain", "Representation"]
