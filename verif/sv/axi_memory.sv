// A memory behind AXI4: the bytes of a file, which other programs may read and change in between.
//
// Bursts are INCR, of whole beats.  Reads are answered in order, and so are writes.  Plus arguments:
//   memory_file=PATH    the bytes, from address memory_base=HEX on; beyond them: DECERR
//   memory_latency=N    cycles from an address to its first beat, and from the last beat to B
//   memory_rate=N       bytes a cycle times 256, both directions together (0: no limit)
//   memory_stall=N      in each cycle, each channel rests with probability N/65536
//   memory_seed=N       start of the resting pattern
// While `fault` is high, the beat at `fault_address` answers with SLVERR and is not written.
// A rising `reopen` makes writes visible to others, and what they changed visible here.
module axi_memory #(
    parameter int DATA    = 64,
    parameter int ADDRESS = 40,
    parameter int ID      = 1
) (
    input  logic               clk,
    input  logic               rst,
    input  logic               reopen,
    input  logic               fault,
    input  logic [63:0]        fault_address,
    input  logic [ID-1:0]      arid,
    input  logic [ADDRESS-1:0] araddr,
    input  logic [7:0]         arlen,
    input  logic               arvalid,
    output logic               arready,
    output logic [ID-1:0]      rid,
    output logic [DATA-1:0]    rdata,
    output logic [1:0]         rresp,
    output logic               rlast,
    output logic               rvalid,
    input  logic               rready,
    input  logic [ADDRESS-1:0] awaddr,
    input  logic [7:0]         awlen,
    input  logic               awvalid,
    output logic               awready,
    input  logic [DATA-1:0]    wdata,
    input  logic [DATA/8-1:0]  wstrb,
    input  logic               wlast,
    input  logic               wvalid,
    output logic               wready,
    output logic [1:0]         bresp,
    output logic               bvalid,
    input  logic               bready
);
  localparam int BYTES = DATA / 8;
  localparam int DEPTH = 32;
  localparam int POINTER = $clog2(DEPTH);
  localparam logic [1:0] OKAY = 2'd0, SLVERR = 2'd2, DECERR = 2'd3;

  int                 file;
  string              path;
  longint unsigned    base, size;
  logic [31:0]        latency, rate, stall, noise[5];
  longint unsigned    now;
  int                 tokens;
  logic               opened;

  // Bursts on the way: a ring each for reads, writes and answers to writes.
  logic [ADDRESS-1:0] read_address[DEPTH], write_address[DEPTH];
  logic [7:0]         read_left[DEPTH];
  logic [ID-1:0]      read_id[DEPTH];
  longint unsigned    read_time[DEPTH], answer_time[DEPTH];
  logic [1:0]         answer[DEPTH], worst;
  logic [POINTER-1:0] read_head, read_tail, write_head, write_tail, answer_head, answer_tail;
  logic [POINTER:0]   reads, writes, answers;
  logic               read_beat, write_beat, write_end, rest[5];

  // Marsaglia's 32-bit xorshift generator: period 2**32 - 1, never zero.
  function automatic logic [31:0] next_noise(input logic [31:0] state);
    next_noise = state ^ (state << 13);
    next_noise = next_noise ^ (next_noise >> 17);
    next_noise = next_noise ^ (next_noise << 5);
  endfunction

  function automatic logic [1:0] response(input logic [ADDRESS-1:0] address);
    response = OKAY;
    if (64'(address) < base || 64'(address) + 64'(BYTES) > base + size) response = DECERR;
    if (fault && 64'(address) == fault_address / 64'(BYTES) * 64'(BYTES)) response = SLVERR;
  endfunction

  function automatic logic [DATA-1:0] beat(input logic [ADDRESS-1:0] address);
    logic [DATA-1:0] raw;
    raw = '0;
    void'($fseek(file, 32'(64'(address) - base), 0));
    if ($fread(raw, file) != BYTES) $fatal(1, "memory: cannot read %s", path);
    // $fread puts the file's first byte into the most significant one.
    beat = {<<8{raw}};
  endfunction

  task automatic open_file;
    file = $fopen(path, "r+b");
    if (file == 0) $fatal(1, "memory: cannot open %s", path);
  endtask

  initial begin
    base = 0;
    latency = 0;
    rate = 0;
    stall = 0;
    noise[0] = 1;
    void'($value$plusargs("memory_base=%h", base));
    void'($value$plusargs("memory_bytes=%d", size));
    void'($value$plusargs("memory_latency=%d", latency));
    void'($value$plusargs("memory_rate=%d", rate));
    void'($value$plusargs("memory_stall=%d", stall));
    void'($value$plusargs("memory_seed=%d", noise[0]));
    for (int i = 0; i < 5; i++) noise[i] = noise[0] + 32'(i) * 32'h9e3779b9 | 32'd1;
    if (!$value$plusargs("memory_file=%s", path)) $fatal(1, "memory: no file");
    open_file();
  end

  assign arready = !rest[0] && reads != (POINTER + 1)'(DEPTH);
  assign awready = !rest[1] && writes != (POINTER + 1)'(DEPTH);
  assign wready = !rest[2] && writes != 0 && answers != (POINTER + 1)'(DEPTH)
      && (rate == 0 || tokens > 0);
  // The beat at the head of the reads goes into the register of R.
  assign read_beat = reads != 0 && now >= read_time[read_head] && (!rvalid || rready)
      && !rest[3] && (rate == 0 || tokens > 0);
  assign write_beat = wvalid && wready;
  assign write_end = write_beat && wlast;

  always_ff @(posedge clk) begin
    now <= now + 1;
    opened <= reopen;
    if (reopen && !opened) begin
      $fclose(file);
      open_file();
    end
    for (int i = 0; i < 5; i++) begin
      noise[i] <= next_noise(noise[i]);
      rest[i]  <= {16'd0, noise[i][15:0]} < stall;
    end
    if (tokens < 8 * 256 * BYTES) tokens <= tokens + int'(rate)
        - (read_beat ? 256 * BYTES : 0) - (write_beat ? 256 * BYTES : 0);
    else tokens <= tokens - (read_beat ? 256 * BYTES : 0) - (write_beat ? 256 * BYTES : 0);

    if (arvalid && arready) begin
      read_address[read_tail] <= araddr;
      read_left[read_tail] <= arlen;
      read_id[read_tail] <= arid;
      read_time[read_tail] <= now + 64'(latency);
      read_tail <= read_tail + 1;
    end
    if (rready) rvalid <= 1'b0;
    if (read_beat) begin
      rvalid <= 1'b1;
      rresp <= response(read_address[read_head]);
      rdata <= response(read_address[read_head]) == DECERR ? '0 : beat(read_address[read_head]);
      rid <= read_id[read_head];
      rlast <= read_left[read_head] == 0;
      read_address[read_head] <= read_address[read_head] + ADDRESS'(BYTES);
      read_left[read_head] <= read_left[read_head] - 1;
      if (read_left[read_head] == 0) read_head <= read_head + 1;
    end
    reads <= reads + (POINTER + 1)'(arvalid && arready)
        - (POINTER + 1)'(read_beat && read_left[read_head] == 0);

    if (awvalid && awready) begin
      write_address[write_tail] <= awaddr;
      write_tail <= write_tail + 1;
    end
    if (write_beat) begin
      if (response(write_address[write_head]) == OKAY) begin
        if (&wstrb) begin
          void'($fseek(file, 32'(64'(write_address[write_head]) - base), 0));
          $fwrite(file, "%u", wdata);
        end else
          for (int i = 0; i < BYTES; i++)
            if (wstrb[i]) begin
              void'($fseek(file, 32'(64'(write_address[write_head]) + 64'(i) - base), 0));
              $fwrite(file, "%c", wdata[8*i+:8]);
            end
      end
      worst <= wlast ? OKAY : worst | response(write_address[write_head]);
      write_address[write_head] <= write_address[write_head] + ADDRESS'(BYTES);
      if (wlast) begin
        write_head <= write_head + 1;
        answer[answer_tail] <= worst | response(write_address[write_head]);
        answer_time[answer_tail] <= now + 64'(latency);
        answer_tail <= answer_tail + 1;
      end
    end
    writes <= writes + (POINTER + 1)'(awvalid && awready) - (POINTER + 1)'(write_end);
    if (bready) bvalid <= 1'b0;
    if (answers != 0 && now >= answer_time[answer_head] && (!bvalid || bready) && !rest[4]) begin
      bvalid <= 1'b1;
      bresp <= answer[answer_head];
      answer_head <= answer_head + 1;
      answers <= answers + (POINTER + 1)'(write_end) - 1;
    end else answers <= answers + (POINTER + 1)'(write_end);

    if (rst) begin
      now <= 0;
      tokens <= 0;
      {rvalid, bvalid, worst} <= '0;
      {read_head, read_tail, write_head, write_tail, answer_head, answer_tail} <= '0;
      {reads, writes, answers} <= '0;
    end
  end

  final $fclose(file);
endmodule
