"""Compare: a dump's linear layers through a simulated unit and the golden model, bit by bit."""

from dstar.verif.compare.check import Mismatch
from dstar.verif.compare.report import CompareError, CompareReport, Figures
from dstar.verif.compare.select import parse_steps
from dstar.verif.compare.session import compare
from dstar.verif.compare.simulate import Played, Simulator

__all__ = [
    "CompareError",
    "CompareReport",
    "Figures",
    "Mismatch",
    "Played",
    "Simulator",
    "compare",
    "parse_steps",
]
