"""A small made-up cell library, in parts, for the tests of the synthesis flow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dstar.synth.errors import SynthError
from dstar.synth.pdk import Found, find_pdk

_HEAD = """library ({name}) {{
  delay_model : table_lookup;
  time_unit : "1ns";
  voltage_unit : "1V";
  current_unit : "1mA";
  capacitive_load_unit (1, pf);
  pulling_resistance_unit : "1kohm";
  leakage_power_unit : "1nW";
  nom_voltage : 1.8;
  slew_lower_threshold_pct_rise : 20; slew_upper_threshold_pct_rise : 80;
  slew_lower_threshold_pct_fall : 20; slew_upper_threshold_pct_fall : 80;
  input_threshold_pct_rise : 50; input_threshold_pct_fall : 50;
  output_threshold_pct_rise : 50; output_threshold_pct_fall : 50;
  /* a wire load has an area too: {{ }} */
  wire_load ("small") {{ area : 7777; resistance : 0; capacitance : 1;
    slope : 0; fanout_length (1, 0.1); fanout_length (2, 0.2); }}
  lu_table_template (t) {{
    variable_1 : input_net_transition; variable_2 : total_output_net_capacitance;
    index_1 ("0.01, 1.0"); index_2 ("0.001, 0.1");
  }}
  lu_table_template (c) {{
    variable_1 : related_pin_transition; variable_2 : constrained_pin_transition;
    index_1 ("0.01, 1.0"); index_2 ("0.001, 0.1");
  }}
"""
_TABLE = 'index_1 ("0.01, 1.0"); index_2 ("0.001, 0.1"); values ("{0}, 0.4", "{0}, 0.6");'


def _timing(related: str, kind: str, delay: float) -> str:
    tables = "".join(
        f"{table} (t) {{ {_TABLE.format(delay)} }} "
        for table in ("cell_rise", "cell_fall", "rise_transition", "fall_transition")
    )
    return f'timing () {{ related_pin : "{related}"; {kind} {tables} }}'


def gate(name: str, area: float, inputs: str, function: str) -> str:
    """A combinational cell."""
    pins = "".join(f"pin ({p}) {{ direction : input; capacitance : 0.002; }}\n" for p in inputs)
    arcs = "".join(_timing(p, "timing_sense : negative_unate;", 0.05) for p in inputs)
    return (
        f"cell ({name}) {{ area : {area};\n{pins}"
        f'pin (Y) {{ direction : output; function : "{function}"; max_capacitance : 0.1; {arcs} }}'
        "\n}\n"
    )


def flip_flop(name: str = "DFF", area: float = 20.0) -> str:
    """A flip-flop without set or reset."""
    setup = "".join(
        f"{edge}_constraint (c) {{ {_TABLE.format(0.1)} }} " for edge in ("rise", "fall")
    )
    return (
        f"cell ({name}) {{ area : {area};\n"
        'ff (IQ, IQN) { clocked_on : "CK"; next_state : "D"; }\n'
        "pin (CK) { direction : input; clock : true; capacitance : 0.002; }\n"
        "pin (D) { direction : input; capacitance : 0.002; "
        f'timing () {{ related_pin : "CK"; timing_type : setup_rising; {setup} }} }}\n'
        'pin (Q) { direction : output; function : "IQ"; max_capacitance : 0.1; '
        + _timing("CK", "timing_type : rising_edge;", 0.2)
        + " }\n}\n"
    )


LOGIC = (
    gate("INV", 2, "A", "!A")
    + gate("BUF", 3, "A", "A")
    + gate("NAND2", 4, "AB", "!(A * B)")
    + gate("NOR2", 4, "AB", "!(A + B)")
)


def library(path: Path, cells: str, name: str = "toy") -> Path:
    """Write a Liberty file."""
    path.write_text(_HEAD.format(name=name) + cells + "}\n")
    return path


def toy(folder: Path) -> list[Path]:
    """The whole library, in two files as some PDKs split it."""
    return [
        library(folder / "logic.lib", LOGIC, "toy_logic"),
        library(folder / "seq.lib", flip_flop(), "toy_seq"),
    ]


def nangate(folder: Path) -> Path:
    """The same cells in one file, named as the Nangate 45 nm library names them."""
    cells = LOGIC + flip_flop("DFF_X1")
    for name in ("INV", "BUF", "NAND2", "NOR2"):
        cells = cells.replace(f"cell ({name})", f"cell ({name}_X1)")
    path = folder / "NangateOpenCellLibrary_typical.lib"
    return library(path, cells.replace("pin (Y)", "pin (ZN)"), "NangateOpenCellLibrary")


def installed(name: str) -> Found:
    """A real library, or skip the test: not every machine has them."""
    try:
        return find_pdk(name, env=dict(os.environ))
    except SynthError as error:
        pytest.skip(f"{name}: {str(error).splitlines()[0]}")
