"""memsim: what an attention kernel does to a GPU's memory hierarchy, before anyone launches it."""

from memsim.api import compare, compute, simulate
from memsim.attention import Attention
from memsim.errors import MemsimError, OutOfMemory, TileDoesNotFit
from memsim.gpu import Gpu, gpu_names, load_gpu
from memsim.result import Comparison, Launch, Result, Total
from memsim.sweep import sweep
from memsim.tile import Tile
from memsim.tune import Candidate, Tuning, tune

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "Candidate",
    "Comparison",
    "Gpu",
    "Launch",
    "MemsimError",
    "OutOfMemory",
    "Result",
    "Tile",
    "TileDoesNotFit",
    "Total",
    "Tuning",
    "compare",
    "compute",
    "gpu_names",
    "load_gpu",
    "simulate",
    "sweep",
    "tune",
]
