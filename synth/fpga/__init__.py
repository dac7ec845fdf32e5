"""Units on an ECP5 FPGA: synthesis, placement and routing with open tools."""

from dstar.synth.fpga.ecp5 import DEVICES, fpga_unit

__all__ = ["DEVICES", "fpga_unit"]
