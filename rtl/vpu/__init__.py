"""Vector unit: lanes, their function unit and the program sequencer."""

from .vpu import VPU

__all__ = ["VPU"]
