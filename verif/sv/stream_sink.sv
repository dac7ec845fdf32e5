// Takes the words of a ready/valid stream and writes each to a binary file.
//
// A word takes 4*ceil(WIDTH/32) bytes, least significant first.  Plus arguments, each after the
// stream's NAME and "_":
//   file=PATH    the words (none: they are only counted)
//   stamps=PATH  for each word, the cycle it was accepted in, as 8 bytes
//   stall=N      in each cycle, refuse with probability N/65536
//   seed=N       start of the refusal pattern
// Reset rewinds the files; only the first `count` words of a file are meaningful.  `broken` rises
// and stays when the stream breaks AXI-stream's rule: a word once offered stays, unchanged, until
// it is accepted.
module stream_sink #(
    parameter int    WIDTH = 8,
    parameter string NAME  = "stream"
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             enable,
    input  logic [63:0]      cycle,
    input  logic [WIDTH-1:0] payload,
    input  logic             valid,
    output logic             ready,
    output logic [63:0]      count,
    output logic             broken
);
  int               file, stamps;
  logic [31:0]      stall, noise;
  string            path;
  logic             waiting;
  logic [WIDTH-1:0] offered;

  // Marsaglia's 32-bit xorshift generator: period 2**32 - 1, never zero.
  function automatic logic [31:0] next_noise(input logic [31:0] state);
    next_noise = state ^ (state << 13);
    next_noise = next_noise ^ (next_noise >> 17);
    next_noise = next_noise ^ (next_noise << 5);
  endfunction

  initial begin
    stall  = 0;
    noise  = 1;
    file   = 0;
    stamps = 0;
    void'($value$plusargs({NAME, "_stall=%d"}, stall));
    void'($value$plusargs({NAME, "_seed=%d"}, noise));
    if (noise == 0) noise = 1;
    if ($value$plusargs({NAME, "_file=%s"}, path)) begin
      file = $fopen(path, "wb");
      if (file == 0) $fatal(1, "stream %s: cannot open %s", NAME, path);
    end
    if ($value$plusargs({NAME, "_stamps=%s"}, path)) begin
      stamps = $fopen(path, "wb");
      if (stamps == 0) $fatal(1, "stream %s: cannot open %s", NAME, path);
    end
  end

  always_ff @(posedge clk) begin
    noise   <= next_noise(noise);
    ready   <= enable && {16'd0, noise[15:0]} >= stall;
    waiting <= valid && !ready;
    offered <= payload;
    if (rst) begin
      ready   <= 1'b0;
      waiting <= 1'b0;
      broken  <= 1'b0;
      count   <= 0;
      if (count != 0) begin
        if (file != 0) void'($rewind(file));
        if (stamps != 0) void'($rewind(stamps));
      end
    end else begin
      if (waiting && !broken && !(valid && payload == offered)) begin
        $display("stream %s: a waiting word was %0s in cycle %0d", NAME,
                 valid ? "changed" : "withdrawn", cycle);
        broken <= 1'b1;
      end
      if (valid && ready) begin
        count <= count + 1;
        if (file != 0) $fwrite(file, "%u", payload);
        if (stamps != 0) $fwrite(stamps, "%u", cycle);
      end
    end
  end

  final begin
    if (file != 0) $fclose(file);
    if (stamps != 0) $fclose(stamps);
  end
endmodule
