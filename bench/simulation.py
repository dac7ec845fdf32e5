"""Cold and warm build of the 64x64 MPU, and its speed under cocotb."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from dstar.gen.config import load_config
from dstar.verif.generated import generate
from dstar.verif.harness import build_harness
from dstar.verif.tests.mpu_tools import Product, play_products, random_tile

PRODUCTS = 100


def main() -> None:
    """Print the figures; the cold build uses a cache folder of its own."""
    cfg = load_config(preset="paper")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DSTAR_CACHE"] = f"{folder}/cache"
        dut = generate("mpu", cfg, Path(folder) / "mpu")
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            build = build_harness(dut)
            seconds.append(time.perf_counter() - start)
        print(f"Verilator build at 64x64: cold {seconds[0]:.1f} s, warm {seconds[1]:.3f} s")
        print(f"flags: {' '.join(build.flags)}")
        rng = np.random.default_rng(0)
        products = [
            Product(
                tile=random_tile(rng, cfg, channels=cfg.numeric.k_tile, density=0.7),
                weights=rng.integers(-127, 128, (cfg.array.cols, cfg.numeric.k_tile), np.int8),
            )
            for _ in range(PRODUCTS)
        ]
        result = play_products(build, dut, cfg, products)
        print(
            f"{PRODUCTS} random tile products, bit-exact: {result.cycles} cycles, "
            f"{result.cycles_per_second:,.0f} cycles/s under cocotb"
        )


if __name__ == "__main__":
    main()
