"""One Verilog module per distinct component.

Amaranth elaborates every submodule anew, so an array of 4,096 PEs becomes 4,096 modules.  A
component that appears many times is therefore added through :func:`shared`: under Amaranth's own
simulator it stays an ordinary submodule; under the Verilog emitter, which passes itself as the
``platform``, the parent gets an instance of a module that is written once.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from amaranth.hdl import Elaboratable
from amaranth.lib import wiring


class Shared(wiring.Component):
    """A component whose Verilog module is written once for all its uses.

    Two components with equal :attr:`module_name` must be identical hardware.
    """

    @property
    def module_name(self) -> str:
        """Name of the Verilog module; unique to the component's parameters."""
        raise NotImplementedError


@runtime_checkable
class ModuleLibrary(Protocol):
    """A platform that replaces shared components by instances."""

    def instance(self, component: Shared) -> Elaboratable:
        """An instance of the module of ``component``, wired to its ports."""


def shared(platform: Any, component: Shared) -> Elaboratable:
    """``component`` itself for simulation, an instance of its module for Verilog."""
    if isinstance(platform, ModuleLibrary):
        return platform.instance(component)
    return component
