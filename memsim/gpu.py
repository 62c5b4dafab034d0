"""Machine descriptions: what a GPU is made of, as data.

A `Gpu` holds numbers in base units, the unit in each name. Six real machines and one textbook machine come with memsim
as TOML files; `load_gpu` reads those by name and any other file by path, `override` and `apply_options` replace single
fields. Whatever is wrong with a file or an option is said in one `MemsimError`, one plain sentence per fault.
"""

from memsim._gpu_files import gpu_from_table, gpu_names, load_gpu, template
from memsim._gpu_models import (
    DTYPES,
    L2,
    Calibrated,
    Core,
    Gpu,
    Hbm,
    Host,
    Launch,
    Pipes,
    Registers,
    Sm,
    Sram,
    TileChoice,
)
from memsim._gpu_options import SHORT_OPTIONS, ShortOption, apply_options, override

__all__ = [
    "DTYPES",
    "L2",
    "SHORT_OPTIONS",
    "Calibrated",
    "Core",
    "Gpu",
    "Hbm",
    "Host",
    "Launch",
    "Pipes",
    "Registers",
    "ShortOption",
    "Sm",
    "Sram",
    "TileChoice",
    "apply_options",
    "gpu_from_table",
    "gpu_names",
    "load_gpu",
    "override",
    "template",
]
