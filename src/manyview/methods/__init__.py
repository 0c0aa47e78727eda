"""Representations and intrinsic rewards behind two protocols; MEM, which is both, has a room of its own."""

from manyview.methods.curl import CURL, CURLConfig
from manyview.methods.plain import Plain, PlainConfig
from manyview.methods.protocols import Adversarial, Encoded, Episodic, Healthy, Intrinsic, Representation
from manyview.methods.re3 import RE3, RE3Config
from manyview.methods.ride import RIDE, RIDEConfig

__all__ = [
    "CURL",
    "RE3",
    "RIDE",
    "Adversarial",
    "CURLConfig",
    "Encoded",
    "Episodic",
    "Healthy",
    "Intrinsic",
    "Plain",
    "PlainConfig",
    "RE3Config",
    "RIDEConfig",
    "Representation",
]
