"""The standard-cell libraries that are known by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pdk:
    """A library by name.

    ``files``: file name patterns, each of which must be found (all in one folder).  ``layout``:
    the folder under a PDK root as ``ciel`` lays it.  ``qflow``: the folder under
    ``/usr/share/qflow/tech``.  ``exclude``: cells synthesis must not use (shell patterns), with
    ``why``.  ``exclude_file``: list of more of them under a PDK root.  ``clock_ps``: clock target.
    ``sram``: folder of memory macros under a PDK root.  ``install``: the command that gets it.
    """

    name: str
    process: str
    files: tuple[str, ...]
    clock_ps: int
    install: str
    layout: str = ""
    qflow: str = ""
    exclude: tuple[str, ...] = ()
    why: str = ""
    exclude_file: str = ""
    sram: str = ""


_SKY = "sky130A/libs.ref/sky130_fd_sc_hd"
_GF = "gf180mcuD/libs.ref/gf180mcu_fd_sc_mcu7t5v0"
_ASAP = ("AO", "INVBUF", "OA", "SEQ", "SIMPLE")

PDKS: dict[str, Pdk] = {
    pdk.name: pdk
    for pdk in (
        Pdk(
            name="sky130hd",
            process="SkyWater 130 nm, high density, tt 25 C 1.8 V",
            files=("sky130_fd_sc_hd__tt_025C_1v80.lib",),
            clock_ps=4000,
            install="ciel enable --pdk-family sky130 HASH",
            layout=f"{_SKY}/lib",
            exclude=("sky130_fd_sc_hd__lpflow_*", "sky130_fd_sc_hd__probe*"),
            why="cells for power gating and probing",
            exclude_file="sky130A/libs.tech/librelane/sky130_fd_sc_hd/synth_excluded.cells",
        ),
        Pdk(
            name="ihp-sg13g2",
            process="IHP 130 nm BiCMOS, typ 25 C 1.2 V",
            files=("sg13g2_stdcell_typ_1p20V_25C.lib",),
            clock_ps=4000,
            install="ciel enable --pdk-family ihp-sg13g2 HASH",
            layout="ihp-sg13g2/libs.ref/sg13g2_stdcell/lib",
            exclude_file="ihp-sg13g2/libs.tech/librelane/sg13g2_stdcell/synth_exclude.cells",
            sram="ihp-sg13g2/libs.ref/sg13g2_sram/lib",
        ),
        Pdk(
            name="gf180mcu",
            process="GlobalFoundries 180 nm MCU, 7 track, tt 25 C 5 V",
            files=("gf180mcu_fd_sc_mcu7t5v0__tt_025C_5v00.lib",),
            clock_ps=10000,
            install="ciel enable --pdk-family gf180mcu HASH",
            layout=f"{_GF}/lib",
            exclude_file="gf180mcuD/libs.tech/librelane/gf180mcu_fd_sc_mcu7t5v0/synth_exclude.cells",
        ),
        Pdk(
            name="asap7",
            process="ASAP7 predictive 7 nm, RVT, TT (drawn area, unscaled)",
            files=tuple(f"asap7sc7p5t_{part}_RVT_TT_nldm*.lib" for part in _ASAP),
            clock_ps=500,
            install="git clone https://github.com/The-OpenROAD-Project/asap7sc7p5t_28",
            exclude=("*x1p*_ASAP7*", "*xp*_ASAP7*", "SDF*", "ICG*"),
            why="fractional drives that place-and-route flows avoid, scan and clock gates",
        ),
        Pdk(
            name="freepdk45",
            process="FreePDK45 with the Nangate open cell library, typical",
            files=("NangateOpenCellLibrary_typical.lib",),
            clock_ps=1500,
            install="git clone https://github.com/The-OpenROAD-Project/OpenROAD-flow-scripts",
            layout="freepdk45/libs.ref/nangate45/lib",
        ),
        Pdk(
            name="osu018",
            process="OSU, TSMC 180 nm SCMOS",
            files=("osu018_stdcells.lib",),
            clock_ps=6000,
            install="apt-get install qflow-tech-osu018",
            qflow="osu018",
        ),
        Pdk(
            name="osu035",
            process="OSU, AMI 350 nm SCMOS",
            files=("osu035_stdcells.lib",),
            clock_ps=12000,
            install="apt-get install qflow-tech-osu035",
            qflow="osu035",
        ),
    )
}
