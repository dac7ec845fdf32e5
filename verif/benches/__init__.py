"""cocotb test modules: the side that runs inside the simulator."""
