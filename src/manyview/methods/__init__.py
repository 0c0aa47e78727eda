"""Representations and bonuses. MEM, which is both, is the package `mem`."""

from manyview.methods.bonuses.re3 import RE3, RE3Config
from manyview.methods.bonuses.ride import RIDE, RIDEConfig
from manyview.methods.interfaces import (
    Bonus,
    EncoderOutput,
    EpisodicBonus,
    HasDiagnostics,
    HasDiscriminator,
    Representation,
)
from manyview.methods.representations.curl import CURL, CURLConfig
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig

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
