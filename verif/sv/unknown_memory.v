// A load of two words and a store of them, from a power-up where nothing is known.
// The words are printed as the store writes them; any unknown control signal is reported.
`timescale 1ns / 1ns
module unknown_memory;
  parameter ADDRESS = 40;
  parameter TRANSFER = 111;
  parameter [TRANSFER-1:0] LOAD = 0;
  parameter [TRANSFER-1:0] STORE = 0;

  reg clk = 0, rst = 1, load = 0, store = 0;
  reg [1:0] reads = 0;
  reg answer = 0;
  wire arvalid, awvalid, wvalid, wlast, rready, bready, load_ready, store_ready;
  wire load_done, store_done, load_idle, store_idle, fetch_idle, instruction;
  wire [63:0] wdata;
  wire [11:0] control = {arvalid, awvalid, wvalid, load_ready, store_ready, rready,
                         load_done, store_done, load_idle, store_idle, fetch_idle, instruction};

  memory_top dut (
      .clk(clk), .rst(rst), .stop(1'b0),
      .load__payload(LOAD), .load__valid(load), .load__ready(load_ready),
      .store__payload(STORE), .store__valid(store), .store__ready(store_ready),
      .program__payload({(ADDRESS + 16){1'b0}}), .program__valid(1'b0),
      .instructions__ready(1'b1), .instructions__valid(instruction),
      .noise__payload(6'd0), .noise__valid(1'b0),
      .load_done(load_done), .store_done(store_done),
      .load_idle(load_idle), .store_idle(store_idle), .fetch_idle(fetch_idle),
      .m_axi_arvalid(arvalid), .m_axi_arready(1'b1),
      .m_axi_rid(1'b1), .m_axi_rdata({62'd5, reads}), .m_axi_rresp(2'd0),
      .m_axi_rlast(reads == 1), .m_axi_rvalid(reads != 0), .m_axi_rready(rready),
      .m_axi_awvalid(awvalid), .m_axi_awready(1'b1),
      .m_axi_wvalid(wvalid), .m_axi_wready(1'b1), .m_axi_wdata(wdata), .m_axi_wlast(wlast),
      .m_axi_bid(1'b0), .m_axi_bresp(2'd0), .m_axi_bvalid(answer), .m_axi_bready(bready)
  );

  always #1 clk = ~clk;
  always @(negedge clk)
    if (!rst) begin
      if (^control === 1'bx) $display("unknown %b", control);
      if (wvalid) $display("%h", wdata);
    end
  always @(posedge clk) begin
    if (arvalid && !rst) reads <= 2;
    else if (reads != 0 && rready) reads <= reads - 1;
    answer <= wvalid & wlast & ~rst;
  end
  initial begin
    repeat (3) @(posedge clk);
    #1 rst = 0;
    load = 1;
    @(posedge clk);
    #1 load = 0;
    repeat (20) @(posedge clk);
    #1 store = 1;
    @(posedge clk);
    #1 store = 0;
    repeat (30) @(posedge clk);
    $finish;
  end
endmodule
