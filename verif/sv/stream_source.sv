// Plays the words of a binary file into a ready/valid stream, one word a cycle at best.
//
// The file holds WORDS words of ceil(WIDTH/8) bytes each, least significant byte first.  Only the
// word on the wire is in memory.  Plus arguments, each after the stream's NAME and "_":
//   file=PATH    the words            words=N      how many there are
//   idle=N       before each word, wait on another cycle with probability N/65536
//   seed=N       start of the idle pattern
// A word stays on `payload` with `valid` high until `ready` (AXI-stream's rule).  Reset rewinds to
// the first word but not the idle pattern, so a repeated run meets other gaps.
module stream_source #(
    parameter int    WIDTH = 8,
    parameter string NAME  = "stream"
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             enable,   // may a new word be offered
    output logic [WIDTH-1:0] payload,
    output logic             valid,
    input  logic             ready,
    output logic [63:0]      count,    // words accepted
    output logic             done      // all of them were
);
  localparam int BYTES = (WIDTH + 7) / 8;

  int                 file;
  logic [63:0]        words;
  logic [31:0]        idle, noise;
  string              path;
  logic [63:0]        read;
  logic [8*BYTES-1:0] raw;

  // Marsaglia's 32-bit xorshift generator: period 2**32 - 1, never zero.
  function automatic logic [31:0] next_noise(input logic [31:0] state);
    next_noise = state ^ (state << 13);
    next_noise = next_noise ^ (next_noise >> 17);
    next_noise = next_noise ^ (next_noise << 5);
  endfunction

  // $fread puts the file's first byte into the most significant one.
  function automatic logic [8*BYTES-1:0] reversed(input logic [8*BYTES-1:0] word);
    reversed = {<<8{word}};
  endfunction

  initial begin
    words = 0;
    idle  = 0;
    noise = 1;
    void'($value$plusargs({NAME, "_words=%d"}, words));
    void'($value$plusargs({NAME, "_idle=%d"}, idle));
    void'($value$plusargs({NAME, "_seed=%d"}, noise));
    if (noise == 0) noise = 1;
    file = 0;
    if ($value$plusargs({NAME, "_file=%s"}, path)) begin
      file = $fopen(path, "rb");
      if (file == 0) $fatal(1, "stream %s: cannot open %s", NAME, path);
    end else if (words != 0) $fatal(1, "stream %s: words but no file", NAME);
  end

  assign count = read - 64'(valid);
  assign done = read == words && !valid;

  always_ff @(posedge clk) begin
    noise <= next_noise(noise);
    if (rst) begin
      valid <= 1'b0;
      read  <= 0;
      if (read != 0 && file != 0) void'($rewind(file));
    end else if (!valid || ready) begin
      valid <= 1'b0;
      if (enable && read != words && {16'd0, noise[15:0]} >= idle) begin
        if ($fread(raw, file) != BYTES) $fatal(1, "stream %s: %s is short", NAME, path);
        payload <= WIDTH'(reversed(raw));
        read    <= read + 1;
        valid   <= 1'b1;
      end
    end
  end
endmodule
