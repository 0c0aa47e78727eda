"""Representations and intrinsic rewards behind two protocols; MEM, which is both, has a room of its own."""

from manyview.methods.curl import CURL, CURLConfig
from manyview.methods.plain import Plain, PlainConfig
from manyview.methods.protocols import Adversarial, Encoded, Healthy, Intrinsic, Representation
from manyview.methods.re3 import RE3, RE3Config

__all__ = [
    "CURL",
    "RE3",
    "Adversarial",
    "CURLConfig",
    "Encoded",
    "Healthy",
    "Intrinsic",
    "Plain",
    "PlainConfig",
    "RE3Config",
    "Representation",
]
