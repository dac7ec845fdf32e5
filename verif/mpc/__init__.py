"""The core in the simulator, with a memory behind its AXI4 port and a driver of its registers."""
