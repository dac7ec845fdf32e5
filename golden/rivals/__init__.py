"""Golden models of the accelerators that the paper compares DSTAR with, one file each.

Every rival is a method for the wrapper of :mod:`dstar.golden.model`, measured with one stick
(:mod:`.scheme`).  Where the DSTAR paper and a rival's own paper disagree there are two modes:
``as_dstar`` and ``as_published``.  Docstrings say what is published and what is assumed.
"""

from .cambricon import CambriconD
from .ditto import Ditto
from .exion import FFNReuse, TopKeys, ZeroSmall
from .int8 import GroupInt8, TokenInt8
from .profile import ActivationProfile, profile_activations
from .sdma import MergedInt8, MergeTokens

__all__ = [
    "ActivationProfile",
    "CambriconD",
    "Ditto",
    "FFNReuse",
    "GroupInt8",
    "MergeTokens",
    "MergedInt8",
    "TokenInt8",
    "TopKeys",
    "ZeroSmall",
    "profile_activations",
]
