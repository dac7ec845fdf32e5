"""Plain INT8 designs of equal throughput, synthesized by the same flow for comparison."""

from dstar.synth.reference.booth import BoothPE
from dstar.synth.reference.int8 import Int8PE, Int8Row, Int8Tile

__all__ = ["BoothPE", "Int8PE", "Int8Row", "Int8Tile"]
