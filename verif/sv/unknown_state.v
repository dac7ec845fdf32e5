// Plays words into the MPU from a power-up where every register and memory word is unknown.
//
// A four-state simulator without initial values starts all state as x.  After the reset no
// handshake may ever be x, and the sums must be what they are from any other state.
module unknown_state;
  parameter SLICES = 1, WEIGHTS = 1, COMMANDS = 1;
  parameter SLICES_WIDTH = 1, WEIGHTS_WIDTH = 1, OUTPUT_WIDTH = 1;
  parameter OUTPUTS = 1;

  reg clk = 0;
  reg rst = 1;
  always #1 clk = ~clk;

  reg [SLICES_WIDTH-1:0] slices [0:SLICES-1];
  reg [WEIGHTS_WIDTH-1:0] weights [0:WEIGHTS-1];
  reg [1:0] commands [0:COMMANDS-1];
  integer slice = 0, weight = 0, command = 0, received = 0, cycles = 0, file;
  wire slices_ready, weights_ready, command_ready, output_valid;
  wire [OUTPUT_WIDTH-1:0] output_payload;

  mpu dut(
    .clk(clk), .rst(rst),
    .slices__payload(slices[slice]), .slices__valid(!rst && slice < SLICES),
    .slices__ready(slices_ready),
    .weights__payload(weights[weight]), .weights__valid(!rst && weight < WEIGHTS),
    .weights__ready(weights_ready),
    .command__payload(commands[command]), .command__valid(!rst && command < COMMANDS),
    .command__ready(command_ready),
    .output__payload(output_payload), .output__valid(output_valid), .output__ready(!rst),
    .perf__beats(), .perf__slots()
  );

  initial begin
    $readmemh("slices.hex", slices);
    $readmemh("weights.hex", weights);
    $readmemh("command.hex", commands);
    file = $fopen("output.hex", "w");
    repeat (3) @(posedge clk);
    #1 rst = 0;
  end

  always @(posedge clk) if (!rst) begin
    cycles <= cycles + 1;
    if (^{slices_ready, weights_ready, command_ready, output_valid} === 1'bx) begin
      $display("a handshake is unknown %0d cycles after the reset", cycles);
      $finish;
    end
    if (slices_ready && slice < SLICES) slice <= slice + 1;
    if (weights_ready && weight < WEIGHTS) weight <= weight + 1;
    if (command_ready && command < COMMANDS) command <= command + 1;
    if (output_valid) begin
      $fdisplay(file, "%h", output_payload);
      received <= received + 1;
    end
    if (received == OUTPUTS || cycles == 100000) $finish;
  end
endmodule
