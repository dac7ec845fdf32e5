"""A block of PEs that share operand registers, and a row of such blocks."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from dstar.gen.config import SLICE_BITS, Config
from dstar.rtl.hierarchy import Shared, shared
from dstar.rtl.mpu.pe import PE


def digits_layout(cfg: Config, rows: int) -> data.ArrayLayout:
    """Digits of one beat: ``rows`` tokens of ``lanes`` signed digits."""
    return data.ArrayLayout(data.ArrayLayout(signed(SLICE_BITS), cfg.array.lanes), rows)


def weights_layout(cfg: Config, cols: int) -> data.ArrayLayout:
    """Weights of one beat: ``cols`` output channels of ``lanes`` weights."""
    return data.ArrayLayout(
        data.ArrayLayout(signed(cfg.numeric.weight_bits), cfg.array.lanes), cols
    )


def sums_layout(cfg: Config, rows: int) -> data.ArrayLayout:
    """One drained column: ``rows`` sums, in the accumulator's modular format."""
    return data.ArrayLayout(cfg.numeric.acc_width, rows)


def flat(layout: data.Layout) -> int:
    """Width of a port that carries ``layout``.

    Ports inside the array are plain vectors, viewed as arrays where they are used: thousands of
    element names would otherwise fill the Verilog.
    """
    return layout.size


class PETile(Shared):
    """``rows x cols`` PEs behind one set of operand registers (as Gemmini's Tile).

    Operands and control are registered on entry, reach all PEs of the block in the same cycle,
    and leave to the right (digits, control) and downwards (weights): one hop a block.

    A block whose sums have been captured holds them until ``start``, even while ``shift`` moves
    the sums of the tile before through the blocks to its right.

    ``offset``: a block of the offset row, whose digits are 0 or -2 only; the low bit of each digit
    is ignored, which halves its PEs' logic.

    Members
    -------
    digits_i, keep_i, double_i / ``_o``: operand and control path, left to right.
    weights_i / weights_o: weight path, top to bottom.
    shift, start: drain control, common to all blocks of a row.
    shadow_i / shadow_o: ``rows`` sums moving right.

    Latency: one cycle from each input to its output of the same name.
    """

    def __init__(self, cfg: Config, *, rows: int, offset: bool = False) -> None:
        self.cfg = cfg
        self.rows = rows
        self.offset = offset
        self.cols = cfg.array.cluster
        super().__init__(
            {
                "digits_i": In(flat(digits_layout(cfg, rows))),
                "digits_o": Out(flat(digits_layout(cfg, rows))),
                "keep_i": In(1),
                "keep_o": Out(1),
                "double_i": In(1),
                "double_o": Out(1),
                "weights_i": In(flat(weights_layout(cfg, self.cols))),
                "weights_o": Out(flat(weights_layout(cfg, self.cols))),
                "shift": In(1),
                "start": In(1),
                "shadow_i": In(flat(sums_layout(cfg, rows))),
                "shadow_o": Out(flat(sums_layout(cfg, rows))),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"pe_tile_{'offset_' if self.offset else ''}{self.rows}x{self.cols}"

    def elaborate(self, platform: Any) -> Module:
        """Registers on two edges, PEs between them."""
        m = Module()
        digits: Value = Signal(len(self.digits_i), reset_less=True)
        weights = Signal(len(self.weights_i), reset_less=True)
        keep = Signal(init=1)
        double = Signal()
        if self.offset:
            high = Signal(len(digits) // SLICE_BITS, reset_less=True)
            m.d.sync += high.eq(Cat(bit for bit in self.digits_i[1::SLICE_BITS]))
            digits = Cat(Cat(0, bit) for bit in high)
        else:
            m.d.sync += digits.eq(self.digits_i)
        m.d.sync += [
            weights.eq(self.weights_i),
            keep.eq(self.keep_i),
            double.eq(self.double_i),
        ]
        m.d.comb += [
            self.digits_o.eq(digits),
            self.weights_o.eq(weights),
            self.keep_o.eq(keep),
            self.double_o.eq(double),
        ]

        hold = Signal()
        capture = ~(keep | double)
        m.d.sync += hold.eq(capture | hold & ~self.start)
        moving = Signal()
        m.d.comb += moving.eq(self.shift & (self.start | ~hold))

        for row in range(self.rows):
            path: Value = self.shadow_i.word_select(row, self.cfg.numeric.acc_width)
            for col in range(self.cols):
                pe = PE(self.cfg)
                m.submodules[f"pe_{row}_{col}"] = shared(platform, pe)
                m.d.comb += [
                    pe.digits.eq(digits.word_select(row, pe.digits.shape().size)),
                    pe.weights.eq(weights.word_select(col, pe.weights.shape().size)),
                    pe.keep.eq(keep),
                    pe.double.eq(double),
                    pe.shift.eq(moving),
                    pe.shadow_i.eq(path),
                ]
                path = pe.shadow_o
            m.d.comb += self.shadow_o.word_select(row, len(path)).eq(path)
        return m


class PERow(Shared):
    """A row of :class:`PETile`: ``rows`` tokens times all output channels.

    Control for the next row down leaves one cycle later (``_o``), in step with the weights.
    ``offset``: the offset row (:class:`PETile`).

    Members
    -------
    digits, keep_i, double_i, shift_i, start_i: from the left; the last four also leave downwards.
    weights_i / weights_o: ``cols`` output channels, top to bottom, physical column order.
    sums: the rightmost column's shadow registers, ``rows`` sums.
    """

    def __init__(self, cfg: Config, *, rows: int, offset: bool = False) -> None:
        self.cfg = cfg
        self.rows = rows
        self.offset = offset
        super().__init__(
            {
                "digits": In(flat(digits_layout(cfg, rows))),
                "keep_i": In(1),
                "keep_o": Out(1, init=1),
                "double_i": In(1),
                "double_o": Out(1),
                "shift_i": In(1),
                "shift_o": Out(1),
                "start_i": In(1),
                "start_o": Out(1),
                "weights_i": In(flat(weights_layout(cfg, cfg.array.cols))),
                "weights_o": Out(flat(weights_layout(cfg, cfg.array.cols))),
                "sums": Out(flat(sums_layout(cfg, rows))),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "pe_row_offset" if self.offset else f"pe_row_{self.rows}"

    def elaborate(self, platform: Any) -> Module:
        """Blocks side by side, each taking from its left neighbour."""
        m = Module()
        m.d.sync += [
            self.keep_o.eq(self.keep_i),
            self.double_o.eq(self.double_i),
            self.shift_o.eq(self.shift_i),
            self.start_o.eq(self.start_i),
        ]
        digits, keep, double = self.digits, self.keep_i, self.double_i
        sums: Any = None
        for block in range(self.cfg.array.block_cols):
            tile = PETile(self.cfg, rows=self.rows, offset=self.offset)
            m.submodules[f"tile_{block}"] = shared(platform, tile)
            m.d.comb += [
                tile.digits_i.eq(digits),
                tile.keep_i.eq(keep),
                tile.double_i.eq(double),
                tile.shift.eq(self.shift_i),
                tile.start.eq(self.start_i),
                tile.weights_i.eq(self.weights_i.word_select(block, len(tile.weights_i))),
                self.weights_o.word_select(block, len(tile.weights_o)).eq(tile.weights_o),
            ]
            if sums is not None:
                m.d.comb += tile.shadow_i.eq(sums)
            digits, keep, double, sums = (
                tile.digits_o,
                tile.keep_o,
                tile.double_o,
                tile.shadow_o,
            )
        m.d.comb += self.sums.eq(sums)
        return m
