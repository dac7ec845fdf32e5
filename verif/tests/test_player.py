"""The stream players: nothing is lost, changed or reordered, and every wrong stream is noticed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dstar.verif.player import Dut, PlayResult, ScalarPort, StreamPort, build_harness, play
from dstar.verif.runner import Build, SimulationError

WIDTHS = (1, 8, 13, 64, 570)
DROP, REPEAT, CHANGE, WITHDRAW, STICK, FORGET_RESET = range(1, 7)

# `fault` breaks the third word (index 2); a FIFO that forgets its reset keeps what it held.
FIFO = """
module fifo #(parameter WIDTH = 8) (
  input clk, input rst, input [2:0] fault, input [WIDTH-1:0] in, input in_valid, output in_ready,
  output [WIDTH-1:0] out, output out_valid, input out_ready);
  reg [WIDTH-1:0] memory [0:3];
  reg [2:0] head, tail;
  reg [15:0] index, pushed, waited;
  wire third = index == 2;
  wire push = in_valid && in_ready, pop = out_valid && out_ready;
  assign in_ready = (head - tail) != 3'd4;
  assign out_valid = head != tail && !(third && (fault == 5 || fault == 4 && waited == 1));
  assign out = memory[tail[1:0]] ^ {WIDTH{third && fault == 3 && waited[0]}};
  always @(posedge clk)
    if (rst && fault == 6) waited <= 0;
    else if (rst) begin head <= 0; tail <= 0; index <= 0; pushed <= 0; waited <= 0; end
    else begin
      waited <= out_valid && !out_ready ? waited + 1 : 0;
      if (push) memory[head[1:0]] <= in;
      if (push) pushed <= pushed + 1;
      if (push && !(fault == 1 && pushed == 2)) head <= head + 1;
      if (pop) begin
        index <= index + 1;
        if (!(third && fault == 2)) tail <= tail + 1;
      end
    end
  initial begin head = 0; tail = 0; index = 0; pushed = 0; waited = 0; end
endmodule
"""


def bank_text() -> str:
    """A top with one FIFO for each width, a scalar input that breaks them and a word count."""
    ports, body = ["input clk", "input rst", "input [2:0] fault", "output reg [31:0] words"], []
    for width in WIDTHS:
        i, o = f"i{width}", f"o{width}"
        ports += [
            f"input [{width - 1}:0] {i}__payload, input {i}__valid, output {i}__ready",
            f"output [{width - 1}:0] {o}__payload, output {o}__valid, input {o}__ready",
        ]
        body.append(
            f"fifo #(.WIDTH({width})) f{width} (.clk(clk), .rst(rst), .fault(fault),"
            f" .in({i}__payload), .in_valid({i}__valid), .in_ready({i}__ready),"
            f" .out({o}__payload), .out_valid({o}__valid), .out_ready({o}__ready));"
        )
    count = "always @(posedge clk) words <= rst ? 0 : words + 32'(o8__valid && o8__ready);"
    return "\n".join([FIFO, f"module bank ({', '.join(ports)});", *body, count, "endmodule\n"])


@pytest.fixture(autouse=True)
def _leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of failed runs, which are kept for their logs, go where pytest cleans up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Dut]:
    """One simulator with a FIFO for each width."""
    source = tmp_path_factory.mktemp("bank") / "bank.v"
    source.write_text(bank_text())
    streams = [StreamPort(name=f"i{width}", direction="in", width=width) for width in WIDTHS]
    streams += [StreamPort(name=f"o{width}", direction="out", width=width) for width in WIDTHS]
    dut = Dut(
        sources=(source,),
        top="bank",
        streams=tuple(streams),
        scalars=(
            ScalarPort(name="fault", direction="in", width=3),
            ScalarPort(name="words", direction="out", width=32),
        ),
    )
    return build_harness(dut), dut


def random_words(count: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Words of ``width`` random bits as uint8 [count, ceil(width / 8)]."""
    rng = np.random.default_rng([seed, width])
    words = rng.integers(0, 256, (count, (width + 7) // 8), dtype=np.uint8)
    if width % 8:
        words[:, -1] &= (1 << width % 8) - 1
    return words


def play_all(
    bank: tuple[Build, Dut], count: int, seed: int, **options: object
) -> tuple[dict[str, NDArray[np.uint8]], PlayResult]:
    """Play ``count`` random words through every FIFO."""
    inputs = {f"i{width}": random_words(count, width, seed) for width in WIDTHS}
    expect = {f"o{width}": count for width in WIDTHS}
    result = play(*bank, inputs=inputs, expect=expect, seed=seed, **options)  # type: ignore[arg-type]
    return inputs, result


def play_one(bank: tuple[Build, Dut], words: NDArray[np.uint8], **options: object) -> PlayResult:
    """Play words through the 13-bit FIFO."""
    expect = {"o13": len(words)}
    return play(*bank, inputs={"i13": words}, expect=expect, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("idle", "backpressure"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.3, 0.4), (0.9, 0.9)]
)
def test_every_word_arrives(
    bank: tuple[Build, Dut], seed: int, idle: float, backpressure: float
) -> None:
    inputs, result = play_all(bank, 300, seed, idle=idle, backpressure=backpressure, stamps=True)
    for width in WIDTHS:
        np.testing.assert_array_equal(result.outputs[f"o{width}"], inputs[f"i{width}"])
        assert np.all(np.diff(result.stamps[f"o{width}"].astype(np.int64)) >= 1)
    assert result.probes == {"words": 300}
    assert result.cycles == 1 + max(int(stamps[-1]) for stamps in result.stamps.values())
    rate = 300 / result.cycles
    if idle == backpressure == 0:
        assert result.cycles == 302
    else:
        assert 0.2 < rate / (1 - max(idle, backpressure)) < 1.1


def test_patterns_follow_the_seed(bank: tuple[Build, Dut]) -> None:
    words = random_words(100, 13, 0)
    runs = [
        play_one(bank, words, seed=seed, idle=0.5, backpressure=0.5, stamps=True).stamps["o13"]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_no_words_at_all(bank: tuple[Build, Dut]) -> None:
    _, result = play_all(bank, 0, 0)
    assert result.outputs["o570"].shape == (0, 72)
    assert result.cycles == 0


def test_reset_in_mid_run_starts_over(bank: tuple[Build, Dut], seed: int) -> None:
    inputs, result = play_all(bank, 200, seed, idle=0.2, backpressure=0.6, resets=[7, 1, 60])
    for width in WIDTHS:
        np.testing.assert_array_equal(result.outputs[f"o{width}"], inputs[f"i{width}"])


def test_reset_that_leaves_a_trace_is_noticed(bank: tuple[Build, Dut], seed: int) -> None:
    words = random_words(100, 13, seed)
    with pytest.raises(SimulationError, match="bank gave surplus words"):
        play_one(bank, words, backpressure=0.8, resets=[40], scalars={"fault": FORGET_RESET})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (DROP, r"bank not done after 500 cycles: .*i13 20 of 20, .*o13 19 of 20"),
        (STICK, r"bank not done after 500 cycles: .*i13 6 of 20, .*o13 2 of 20"),
        (CHANGE, r"broke the stream rule: stream o13: a waiting word was changed in cycle \d+"),
        (WITHDRAW, r"broke the stream rule: stream o13: a waiting word was withdrawn in cycle"),
    ],
)
def test_faulty_design_is_noticed(bank: tuple[Build, Dut], fault: int, message: str) -> None:
    options: Mapping[str, object] = {"scalars": {"fault": fault}, "max_cycles": 500}
    with pytest.raises(SimulationError, match=message):
        play_one(bank, random_words(20, 13, 1), backpressure={"o13": 0.8}, seed=3, **options)


def test_repeated_word_is_noticed(bank: tuple[Build, Dut]) -> None:
    with pytest.raises(SimulationError, match=r"bank gave surplus words: .*o13 \d+ of 20"):
        play_one(bank, random_words(20, 13, 1), scalars={"fault": REPEAT}, tail_cycles=20)


def test_inputs_as_bytes_and_as_a_file(bank: tuple[Build, Dut], tmp_path: Path) -> None:
    words = random_words(50, 570, 0)
    path = tmp_path / "words"
    path.write_bytes(words.tobytes())
    for given in (words.tobytes(), path):
        result = play(*bank, inputs={"i570": given}, expect={"o570": 50})
        np.testing.assert_array_equal(result.outputs["o570"], words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": {"x": b""}}, "bank has no input stream 'x'; it has"),
        ({"expect": {"i13": 1}}, "bank has no output stream 'i13'; it has"),
        ({"scalars": {"mode": 1}}, "bank has no scalar input 'mode'; it has"),
        ({"inputs": {"i13": b"abc"}}, "stream i13: length must be a multiple of 2 bytes, got 3"),
        (
            {"inputs": {"i13": np.zeros((4, 3), np.uint8)}},
            r"stream i13: words must be uint8 \[n, 2\], got uint8 \[4, 3\]",
        ),
        (
            {"inputs": {"i13": np.zeros((4, 2), np.int64)}},
            r"stream i13: words must be uint8 \[n, 2\], got int64 \[4, 2\]",
        ),
        ({"idle": 1.0}, "idle must be at least 0 and below 1, got 1.0"),
        ({"backpressure": -0.1}, "stall must be at least 0 and below 1, got -0.1"),
    ],
)
def test_wrong_calls_are_refused(
    bank: tuple[Build, Dut], change: dict[str, object], message: str
) -> None:
    options: dict[str, object] = {"inputs": {}, "expect": {}} | change
    with pytest.raises(SimulationError, match=message):
        play(*bank, **options)  # type: ignore[arg-type]


def test_progress_is_told(bank: tuple[Build, Dut]) -> None:
    told: list[Mapping[str, int]] = []
    play_one(bank, random_words(2000, 13, 0), progress=told.append)
    assert told
    assert set(told[-1]) == {f"o{width}" for width in WIDTHS}


STAGES = """
module stage (input clk, input [7:0] in, output reg [7:0] out);
  always @(posedge clk) out <= in + 8'd1;
endmodule
module chain (input clk, input rst_n, input [7:0] i__payload, input i__valid, output i__ready,
    output [7:0] o__payload, output o__valid, input o__ready);
  wire [7:0] links [0:3];
  reg [2:0] valid;
  assign links[0] = i__payload, i__ready = 1'b1;
  assign o__payload = links[3], o__valid = valid[2];
  always @(posedge clk) valid <= rst_n ? {valid[1:0], i__valid} : 3'd0;
  genvar n;
  generate for (n = 0; n < 3; n = n + 1) begin : stages
    stage s (.clk(clk), .in(links[n]), .out(links[n+1]));
  end endgenerate
endmodule
"""


def test_hierarchical_blocks_keep_their_latency(tmp_path: Path) -> None:
    """A block compiled on its own must not see a neighbour's new value a cycle early."""
    source = tmp_path / "chain.v"
    source.write_text(STAGES)
    dut = Dut(
        sources=(source,),
        top="chain",
        streams=(
            StreamPort(name="i", direction="in", width=8),
            StreamPort(name="o", direction="out", width=8),
        ),
        reset="rst_n",
        reset_active_low=True,
        hier_blocks=("stage",),
    )
    made = build_harness(dut)
    assert "--hierarchical" in made.flags
    words = random_words(200, 8, 0)
    result = play(made, dut, inputs={"i": words}, expect={"o": 200}, idle=0.2, stamps=True)
    np.testing.assert_array_equal(result.outputs["o"], words + np.uint8(3))


def test_ports_are_checked() -> None:
    port = StreamPort(name="a", direction="in", width=8)
    with pytest.raises(SimulationError, match="port names must be distinct"):
        Dut(sources=(), top="top", streams=(port, port))
    wrong = ScalarPort(name="b", direction="in", width=0)
    with pytest.raises(SimulationError, match="port b must be at least 1 bit wide, got 0"):
        Dut(sources=(), top="top", streams=(port,), scalars=(wrong,))
