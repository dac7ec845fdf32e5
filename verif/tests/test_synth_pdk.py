"""Liberty files and the search for a library."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dstar.gen.config import load_config
from dstar.synth.command import run_synth
from dstar.synth.errors import SynthError
from dstar.synth.known import PDKS
from dstar.synth.liberty import Cell, parse_liberty, read_liberty
from dstar.synth.paper import against_paper
from dstar.synth.pdk import CUSTOM, find_pdk
from dstar.synth.report import synth_unit
from dstar.verif.tests.synth_tools import LOGIC, flip_flop, gate, installed, library, nangate, toy

SKY = "sky130_fd_sc_hd__tt_025C_1v80.lib"


def _sky(folder: Path, suffix: str = "") -> Path:
    """A stand-in for sky130's library, with a cell that must be excluded."""
    folder.mkdir(parents=True)
    cells = LOGIC + flip_flop() + gate("sky130_fd_sc_hd__lpflow_x", 1, "A", "A")
    path = library(folder / SKY, cells)
    if suffix:
        packed = path.with_name(SKY + suffix)
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


def _find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> Path:
    """Where sky130hd is found with this environment, away from any real one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dstar.synth.pdk._REPOSITORY", tmp_path / "nowhere" / "repository")
    return find_pdk("sky130hd", env={"HOME": str(tmp_path / "home"), **env}).libraries[0].path


def test_liberty_areas_pins_and_kinds(tmp_path: Path) -> None:
    """The first area in the file, a wire load's, is nobody's."""
    cells: dict[str, Cell] = {}
    for path in toy(tmp_path):
        cells |= read_liberty(path).cells
    assert {name: cell.area for name, cell in cells.items()} == {
        "INV": 2, "BUF": 3, "NAND2": 4, "NOR2": 4, "DFF": 20,
    }  # fmt: skip
    assert cells["BUF"].buffer == ("A", "Y")
    assert cells["INV"].buffer is None
    assert cells["DFF"].kind == "ff"
    assert cells["DFF"].clocks == {"CK"}
    assert not cells["DFF"].resets
    assert cells["NAND2"].capacitance("A") == 0.002


def test_liberty_memory_ports() -> None:
    """A macro's self-test address is no port."""
    text = (
        'library (m) { time_unit : "1ps"; cell (ram) { area : 5; '
        "memory () { type : ram; address_width : 8; word_width : 32; } "
        "bus (q) { direction : output; memory_read () { address : A_ADDR; } } "
        "bus (d) { direction : input; memory_write () { address : B_ADDR; } } "
        "bus (t) { direction : input; memory_write () { address : A_BIST_ADDR; } } } }"
    )
    macro = parse_liberty(text, Path("m.lib")).cells["ram"]
    assert (macro.kind, macro.ports, macro.address_width, macro.word_width) == ("memory", 2, 8, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"module x; endmodule\n", "not a Liberty library"),
        (b"VERSION 5.8 ;\nMACRO a\nEND a\n", "not a Liberty library"),
        (b"cell (a) { area : 1; }", "begins with 'cell'"),
        (b"library (x) { cell (a) { area : 1;", "cut short: 2 groups"),
        (b"library (x) { } }", "without its"),
        (b'library (x) { time_unit : "1ns"; }', "holds no cell"),
        (b"library (x) { cell (a) { area : big; } }", "must be a number, got 'big'"),
        (b"\x1f\x8b\x08\x00broken", "corrupt gzip"),
        (gzip.compress(b"library (x) { }" * 999, mtime=0)[:-9], "corrupt gzip"),
    ],
)
def test_liberty_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    """Each with the file's name."""
    path = tmp_path / "bad.lib"
    path.write_bytes(content)
    with pytest.raises(SynthError, match=message) as error:
        read_liberty(path)
    assert "bad.lib" in str(error.value)


def test_missing_library_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(SynthError, match=r"cannot read library .*none\.lib: No such file"):
        find_pdk("sky130hd", liberty=[tmp_path / "none.lib"])


def test_order_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later places are taken only without the earlier ones."""
    layout = "sky130A/libs.ref/sky130_fd_sc_hd/lib"
    home = tmp_path / "home"
    volare = _sky(home / ".volare" / layout)
    assert _find(tmp_path, monkeypatch).parent == volare
    ciel = _sky(home / ".ciel" / layout)
    assert _find(tmp_path, monkeypatch).parent == ciel
    root = _sky(tmp_path / "root" / layout)
    variables = {"PDK_ROOT": str(tmp_path / "root")}
    assert _find(tmp_path, monkeypatch, **variables).parent == root
    own = _sky(tmp_path / "own" / "sky130hd", suffix=".gz")
    variables["DSTAR_PDK"] = str(tmp_path / "own")
    assert _find(tmp_path, monkeypatch, **variables).parent == own


def test_shared_folder_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``../shared/pdk`` from where the command runs."""
    shared = _sky(tmp_path / "shared" / "pdk" / "sky130hd", suffix=".gz")
    (tmp_path / "checkout").mkdir()
    assert _find(tmp_path / "checkout", monkeypatch).parent.resolve() == shared


def test_root_one_level_off_or_unexpanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``PDK_ROOT`` may be ``sky130A`` itself, or hold a variable that was not expanded."""
    inner = _sky(tmp_path / "pdk" / "sky130A" / "libs.ref" / "sky130_fd_sc_hd" / "lib")
    assert _find(tmp_path, monkeypatch, PDK_ROOT=str(tmp_path / "pdk" / "sky130A")).parent == inner
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    assert _find(tmp_path, monkeypatch, PDK_ROOT="$SOMEWHERE/pdk").parent == inner


def test_nothing_found_says_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place tried with its reason, the command that installs it, and the way without."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(SynthError) as error:
        _find(tmp_path, monkeypatch, PDK_ROOT=str(link), DSTAR_PDK="$NOT_SET_ANYWHERE/pdk")
    text = str(error.value)
    assert "$PDK_ROOT" in text
    assert "which does not exist" in text
    assert "names a variable that is not set" in text
    for part in (".ciel", ".volare", "ciel enable --pdk-family sky130", "--pdk generic"):
        assert part in text


def test_incomplete_set_names_the_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASAP7 without its sequential cells."""
    folder = tmp_path / "pdk" / "asap7"
    folder.mkdir(parents=True)
    for part in ("AO", "INVBUF", "OA", "SIMPLE"):
        library(folder / f"asap7sc7p5t_{part}_RVT_TT_nldm_1.lib", LOGIC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dstar.synth.pdk._REPOSITORY", tmp_path / "nowhere" / "repository")
    with pytest.raises(SynthError, match=r"lacks asap7sc7p5t_SEQ_RVT_TT_nldm\*\.lib"):
        find_pdk("asap7", env={"HOME": str(tmp_path), "DSTAR_PDK": str(tmp_path / "pdk")})


def test_library_without_flip_flops(tmp_path: Path) -> None:
    """Refused before anything is synthesized."""
    with pytest.raises(SynthError, match=r"no flip-flop cell in logic\.lib"):
        find_pdk(CUSTOM, liberty=toy(tmp_path)[:1])


def test_unknown_name_lists_the_known() -> None:
    """Also the library-free one."""
    with pytest.raises(SynthError, match="unknown PDK 'sky130'; PDKs are generic, sky130hd"):
        find_pdk("sky130")


def test_exclusion_list_of_the_pdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PDK's own list adds to the built-in patterns; ``#`` begins a comment."""
    root = tmp_path / "root"
    _sky(root / "sky130A" / "libs.ref" / "sky130_fd_sc_hd" / "lib")
    listed = root / "sky130A" / "libs.tech" / "librelane" / "sky130_fd_sc_hd"
    listed.mkdir(parents=True)
    (listed / "synth_excluded.cells").write_text("# weak\nNOR2  # slow\n\n")
    monkeypatch.chdir(tmp_path)
    found = find_pdk("sky130hd", env={"HOME": str(tmp_path), "PDK_ROOT": str(root)})
    assert [n for n in found.cells if found.excluded(n)] == ["NOR2", "sky130_fd_sc_hd__lpflow_x"]


def test_flip_flop_with_reset_is_recognized() -> None:
    """Set or reset pins of a flip-flop in the library."""
    text = "library (x) { " + flip_flop().replace("next_state", 'clear : "!R"; next_state') + "}"
    assert parse_liberty(text + "", Path("x.lib")).cells["DFF"].resets
    assert not parse_liberty("library (x) { " + LOGIC + "}", Path("x")).cells["INV"].resets


def test_freepdk45_is_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absent: how to get it, code 2.  From a file: cells named as Nangate names them."""
    pytest.importorskip("pyosys")
    cfg = load_config(preset="tiny", overrides=("lanes=1", "cluster=1", "k_tile=4"))
    monkeypatch.chdir(tmp_path)
    for variable in ("DSTAR_PDK", "PDK_ROOT"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("dstar.synth.pdk._REPOSITORY", tmp_path / "nowhere" / "repository")
    assert run_synth("pe", cfg, pdk="freepdk45", folder=tmp_path) == 2
    text = capsys.readouterr().err
    assert "library freepdk45 not found" in text
    assert "git clone https://github.com/The-OpenROAD-Project/OpenROAD-flow-scripts" in text
    files = [nangate(tmp_path)]
    report = synth_unit("pe", cfg, pdk="freepdk45", liberty=files, folder=tmp_path, reference=False)
    assert report["pdk"] == "freepdk45"
    assert report["cell_mix"]["NAND2_X1"] > 0
    found = find_pdk("freepdk45", liberty=files)
    paper = against_paper("mpu", load_config(), 3e6, found)
    assert paper is not None
    assert (paper["ours_mm2"], paper["scaling_factor"]) == (3.0, 1.0)
    assert paper["how"].startswith("synthesized at 45 nm")


@pytest.mark.parametrize("name", sorted(PDKS))
def test_installed_libraries_are_read(name: str) -> None:
    """Whatever is there has areas, flip-flops, a buffer and a usable unit of time."""
    found = installed(name)
    cells = found.cells.values()
    assert all(cell.area is not None for cell in cells)
    assert any(cell.kind == "ff" and not found.excluded(cell.name) for cell in cells)
    assert any(cell.buffer for cell in cells)
    assert found.libraries[0].time_ps in (1.0, 1000.0)
