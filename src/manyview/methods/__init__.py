"""Representations and intrinsic rewards behind two protocols; MEM, which is both, has a room of its own."""

from manyview.methods.curl import CURL, CURLConfig
from manyview.methods.plain import PixelEncoder, PixelEncoderConfig
from manyview.methods.protocols import (
    Bonus,
    EncoderOutput,
    EpisodicBonus,
    HasDiagnostics,
    HasDiscriminator,
    Representation,
)
from manyview.methods.re3 import RE3, RE3Config
from manyview.methods.ride import RIDE, RIDEConfig

__all__ = [
    "CURL",
    "RE3",
    "RIDE",
    "Bonus",
    "CURLConfig",
    "EncoderOutput",
    "EpisodicBonus",
    "HasDiagnostics",
    "HasDiscriminator",
    "PixelEncoder",
    "PixelEncoderConfig",
    "RE3Config",
    "RIDEConfig",
    "Representation",
]
