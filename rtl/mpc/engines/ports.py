"""What all engines have in common: their members, and wires between streams."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Value, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, Config
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.axi import RESPONSE_BITS
from dstar.rtl.mpc.buffer import read_signature, write_layout
from dstar.rtl.mpc.decode import STATUS_BITS, command_layout
from dstar.rtl.qpu.streams import channels_bits


def buffer_address_bits(cfg: Config) -> int:
    """Width of a word's address in the unified buffer."""
    return (cfg.core.words - 1).bit_length()


def read_port(cfg: Config) -> wiring.Signature:
    """A read client of the unified buffer."""
    width, bits = 8 * Geometry(cfg).word_bytes, buffer_address_bits(cfg)
    return read_signature(width=width, address_bits=bits)


def write_port(cfg: Config) -> stream.Signature:
    """A write client of the unified buffer."""
    width, bits = 8 * Geometry(cfg).word_bytes, buffer_address_bits(cfg)
    return stream.Signature(write_layout(width=width, address_bits=bits))


def fault_layout(cfg: Config) -> data.StructLayout:
    """A command that failed: its status code; for bus errors, address and response of the beat."""
    return data.StructLayout(
        {
            "valid": unsigned(1),
            "status": unsigned(STATUS_BITS),
            "address": unsigned(cfg.core.address_bits),
            "response": unsigned(RESPONSE_BITS),
        }
    )


def tile_layout(cfg: Config) -> data.StructLayout:
    """An encoded tile on its way to the MPU: its channels, the largest exponent of its table."""
    return data.StructLayout(
        {"channels": unsigned(channels_bits(cfg)), "finest": signed(EXPONENT_BITS)}
    )


def engine_members(cfg: Config, engine: Engine) -> dict[str, wiring.Member]:
    """Members of every engine.

    ``command``: stream of :func:`~dstar.rtl.mpc.decode.command_layout`.  Taking it is its start.
    ``done``: one pulse for each command, in order, when its effects are in the buffer.
    ``fault``: :func:`fault_layout`; the oldest command for which ``done`` was not seen failed.  It
    stands until reset.  ``busy``: commands are not done.  ``stalled``: and nothing moves, see the
    engine.
    """
    return {
        "command": In(stream.Signature(command_layout(cfg, engine))),
        "done": Out(1),
        "fault": Out(fault_layout(cfg)),
        "busy": Out(1),
        "stalled": Out(1),
    }


def join(m: Module, source: Any, sink: Any) -> None:
    """Connect streams whose payloads have equal bits, whatever their shapes."""
    m.d.comb += [
        Value.cast(sink.payload).eq(Value.cast(source.payload)),
        sink.valid.eq(source.valid),
        source.ready.eq(sink.ready),
    ]
