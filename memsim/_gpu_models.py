"""What a machine description holds: numbers in base units, each with its limits and its meaning beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator
from pydantic_core import PydanticCustomError, core_schema

from memsim.units import quoted

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Quantity:
    """What one number may be. The limits keep every product and quotient of two quantities, in picoseconds too,
    finite and above zero in float64."""

    unit: str
    low: float
    high: float
    whole: bool = False

    @property
    def right(self) -> str:
        """What would be right, to end a sentence with."""
        number = "a whole number" if self.whole else "a number"
        return f"{number}{self.unit and f' of {self.unit}'} from {_limit(self.low)} to {_limit(self.high)}"

    def check(self, value: object) -> int | float:
        """`value` as the number it is; a float that is whole passes for an integer (`capacity_bytes = 150.1e9`)."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _fault(f"is {shown(value)}, but must be {self.right}")
        if isinstance(value, float) and not math.isfinite(value):
            raise _fault(f"is {'not a number (nan)' if math.isnan(value) else 'infinite'}, but must be {self.right}")
        if not self.low <= value <= self.high:
            raise _fault(f"is {shown(value)}, which is out of range: give {self.right}")
        if not self.whole:
            return float(value)
        if value != int(value):
            raise _fault(f"is {shown(value)}, but must be {self.right}")
        return int(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


@dataclass(frozen=True)
class Text:
    """What one text may be, as a pattern and in words."""

    pattern: str
    right: str

    def check(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise _fault(f"is {shown(value)}, but must be {self.right}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


@dataclass(frozen=True)
class OneOf:
    """A text out of a fixed list."""

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.literal_schema(list(self.choices))


def shown(value: object) -> str:
    """A value from a file, as a sentence names it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "an integer of more than 20 digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else "a date or a time"


def _limit(value: float) -> str:
    return f"{value:.0f}" if 1 <= value <= 1e6 else f"{value:g}".replace("e+", "e")


def _fault(predicate: str) -> PydanticCustomError:
    return PydanticCustomError("fault", "{predicate}", {"predicate": predicate})


_Bytes = Annotated[int, Quantity("bytes", 1, 1e15, whole=True)]
_ReservedBytes = Annotated[int, Quantity("bytes", 0, 1e15, whole=True)]
_BytesPerSecond = Annotated[float, Quantity("bytes per second", 1, 1e18)]
_Seconds = Annotated[float, Quantity("seconds", 0, 1)]
_Hertz = Annotated[float, Quantity("hertz", 1e3, 1e12)]
_BytesPerClock = Annotated[float, Quantity("bytes per clock", 1e-6, 1e9)]
_PerClock = Annotated[float, Quantity("operations per clock", 1e-6, 1e9)]
_Count = Annotated[int, Quantity("", 1, 1e6, whole=True)]
_Rows = Annotated[int, Quantity("rows", 1, 2**16, whole=True)]
_Warps = Annotated[int, Quantity("warps", 1, 32, whole=True)]
_Cycles = Annotated[float, Quantity("cycles", 0, 1e6)]
_Share = Annotated[float, Quantity("", 1e-3, 1)]
_SmallShare = Annotated[float, Quantity("", 0, 0.5)]
_Factor = Annotated[float, Quantity("", 0, 100)]
_Cost = Annotated[float, Quantity("", 0.01, 100)]
_Partitions = Annotated[int, Quantity("partitions", 1, 16, whole=True)]
_Stages = Annotated[int, Quantity("stages", 1, 64, whole=True)]
_Registers = Annotated[int, Quantity("registers", 1, 1e9, whole=True)]
_Dtype = Annotated[str, OneOf(DTYPES)]
_Float32 = Annotated[str, OneOf(("float32",))]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hbm(_Part):
    """The device memory, the level below everything on the chip."""

    capacity_bytes: _Bytes = Field(description="bytes that tensors may take")
    bandwidth_bytes_per_s: _BytesPerSecond = Field(description="reads and writes together")
    latency_s: _Seconds = Field(description="from an SM's request to its data, L2 miss included, nothing else moving")


class L2(_Part):
    """The cache that all SMs share."""

    capacity_bytes: _Bytes = Field(description="bytes as the driver reports them")
    bandwidth_bytes_per_s: _BytesPerSecond = Field(description="from L2 into all SMs together")
    latency_s: _Seconds = Field(description="from an SM's request to its data on a hit, nothing else moving")
    partitions: _Partitions = Field(default=1, description="parts of the chip that keep each a copy of shared data")
    dirty_limit_bytes: _Bytes | None = Field(
        default=None, description="stored bytes that it keeps before it writes the oldest to HBM; all of it without"
    )


class Sram(_Part):
    """The shared memory of one SM."""

    capacity_bytes: _Bytes = Field(description="of one SM")
    block_limit_bytes: _Bytes = Field(description="the most that one block may ask for")
    reserved_per_block_bytes: _ReservedBytes = Field(description="taken by the system for each resident block, on top")
    bandwidth_bytes_per_clock: _BytesPerClock = Field(description="of one SM")


class Registers(_Part):
    """The register file of one SM; the limits that decide how many blocks are resident."""

    per_sm: _Registers = Field(description="32-bit registers of one SM")
    per_thread_limit: _Registers = Field(description="the most that one thread may have")
    thread_unit: _Registers = Field(description="a thread's registers are rounded up to a multiple of this")
    warp_unit: _Registers = Field(description="a warp's registers are rounded up to a multiple of this")


class Pipes(_Part):
    """What one SM computes per clock, by dtype."""

    tensor_flop_per_clock: Mapping[_Dtype, _PerClock] = Field(
        description="dense FLOP of dot products with float32 accumulation; a dtype not here runs on the ALU pipe"
    )
    exp_per_clock: Mapping[_Float32, _PerClock] = Field(description="exponentials (the MUFU pipe)")
    alu_per_clock: Mapping[_Float32, _PerClock] = Field(
        description="elementwise operations; a fused multiply-add is one"
    )

    @field_validator("exp_per_clock", "alu_per_clock")
    @classmethod
    def _has_float32(cls, rates: Mapping[str, float]) -> Mapping[str, float]:
        if "float32" not in rates:
            raise _fault("is empty: give float32, the number of operations per clock")
        return rates

    def __hash__(self) -> int:
        return hash(tuple(tuple(sorted(rates.items())) for rates in dict(self).values()))

    def dot_pipe(self, dtype: str) -> Literal["tensor", "alu"]:
        """The pipe on which dot products of `dtype` inputs run. IEEE float32 has none but the ALU on real GPUs."""
        return "tensor" if dtype in self.tensor_flop_per_clock else "alu"

    def dot_flop_per_clock(self, dtype: str) -> float:
        """FLOP per clock of one SM for dot products of `dtype`; on the ALU pipe 2 FLOP per operation."""
        return self.tensor_flop_per_clock.get(dtype, 2 * self.alu_per_clock["float32"])


class Core(_Part):
    """What an SM issues and moves, for the replay of compiled kernels' instructions. Rates are of one SM."""

    sub_partitions: _Partitions = Field(
        description="parts of the SM, each with an issue slot of one instruction a clock"
    )
    integer_per_clock: _PerClock = Field(description="integer, logic, compare, minimum and maximum operations")
    multiply_per_clock: _PerClock = Field(description="integer multiplications")
    conversion_per_clock: _PerClock = Field(description="conversions from float32 to 16 bits")
    mma_flop_per_clock: _PerClock = Field(description="matrix products of single warps (mma.sync)")
    inward_bytes_per_clock: _BytesPerClock = Field(description="from the L2 into the SM")
    l1_bytes: _Bytes = Field(description="SRAM and L1 together; what SRAM leaves caches plain loads and spills")


class Calibrated(_Part):
    """Constants that no data sheet gives, fitted to measurements (`memsim calibrate`). Cycles are of the SM's clock."""

    launch_cycles: _Cycles = Field(description="of a kernel before its first block's first instruction")
    warp_start_cycles: _Cycles = Field(description="that an SM takes to start one warp of a block")
    drain_cycles: _Cycles = Field(description="from a block's last instruction until its place is free")
    block_spread: _SmallShare = Field(
        description="how much slower than the mean the slowest block is, the fastest faster"
    )
    clock_hz: _Hertz = Field(description="the clock while matrix products run")
    idle_tensor_clock_hz: _Hertz = Field(description="the clock in kernels without matrix products")
    throttle_share: _Share = Field(
        description="share of the clock that is lost in the end where products fill all time, HBM and L2 saturated"
    )
    throttle_s: _Seconds = Field(description="time in which it is lost, but for one part in e")
    hbm_efficiency: _Share = Field(description="share of HBM's bandwidth that streams reach")
    hbm_copy_cycles: _Cycles = Field(description="latency of a copy that the L2 must get from HBM")
    copy_cycles: _Cycles = Field(description="latency of a copy that the L2 has")
    box_cycles: _Cycles = Field(description="what a copy by tensor descriptor takes beyond one through pointers")
    descriptor_cycles: _Cycles = Field(description="what a block's first boxes take more: their descriptors are new")
    load_cycles: _Cycles = Field(description="latency of a plain load from HBM")
    merged_share: _Share = Field(description="share of SMs' requests that reach the L2 where blocks drift apart")
    lockstep_wait_share: _Share = Field(
        description="share of a warp's time spent waiting for copies from which on blocks go in step, and their "
        "requests are merged before the L2"
    )
    store_cost: _Cost = Field(description="bandwidth of the L2 that a stored byte takes, in bytes")
    product_start_cycles: _Cycles = Field(description="from the issue of a warp group's product to its start")
    product_end_cycles: _Cycles = Field(description="from its end until who waits for it goes on")
    tensor_contention_cycles: _Cycles = Field(description="what arithmetic takes more beside a running product")
    exp_cycles: _Cycles = Field(description="latency of the exp pipe and of conversions")
    shuffle_cycles: _Cycles = Field(description="latency of a shuffle")
    sram_cycles: _Cycles = Field(description="latency of SRAM")
    uniform_cycles: _Cycles = Field(description="latency of the uniform datapath")
    operand_cycles: _Cycles = Field(description="from an issue until its operands are read")
    barrier_cycles: _Cycles = Field(description="of a block's barrier once all are there")
    fence_cycles: _Cycles = Field(description="of a memory fence")
    spill_cycles: _Cycles = Field(description="latency of a spilled word in the L1")
    spill_miss_cycles: _Cycles = Field(description="what one that the L1 no longer holds takes besides, from the L2")
    spill_miss_share: _Factor = Field(
        description="share of spilled words that miss the L1, per L1 that they would fill, if they fill more than one"
    )
    copies_at_banks: _Factor = Field(description="SRAM bandwidth that an arriving byte takes, in bytes")


class Sm(_Part):
    """One streaming multiprocessor, and how many there are."""

    count: _Count = Field(description="SMs of the GPU")
    clock_hz: _Hertz = Field(description="the clock of the SMs under load")
    max_warps: _Count = Field(description="resident warps of one SM")
    max_blocks: _Count = Field(description="resident blocks of one SM")
    warp_unit: _Count = Field(
        default=1, description="a block's warps are rounded up to a multiple of this when its registers are counted"
    )
    sram: Sram = Field(description="the shared memory of one SM")
    registers: Registers | None = Field(
        default=None, description="the register file; without it O, S, P, m and l take SRAM"
    )
    pipes: Pipes = Field(description="what one SM computes per clock")
    core: Core | None = Field(default=None, description="what one SM issues, for the replay of compiled kernels")


class Launch(_Part):
    """What starting a kernel costs."""

    overhead_s: _Seconds = Field(description="time per launch beside the kernel itself")


class Host(_Part):
    """The link between the host's memory and HBM, in one direction."""

    bandwidth_bytes_per_s: _BytesPerSecond = Field(description="achieved by large copies in one direction")
    latency_s: _Seconds = Field(description="per copy, before its first byte")


class TileChoice(_Part):
    """One default tile of a machine."""

    block_m: _Rows = Field(description="rows of Q of one block")
    block_n: _Rows = Field(description="rows of K and V of one step")
    num_warps: _Warps = Field(description="warps of one block")
    num_stages: _Stages = Field(description="buffers of the K/V ring")


class Gpu(_Part):
    """One machine. Bytes, seconds, hertz, and rates of one SM per clock."""

    name: Annotated[str, Text(r"[!-~]([ -~]{0,98}[!-~])?", "1 to 100 plain characters")] = Field(
        description="what refusals and memsim gpus call it; reports print the name given on the command line"
    )
    architecture: Annotated[str, Text(r"sm_[0-9]{2,3}", 'a compute capability such as "sm_90", or left out')] | None = (
        Field(default=None, description="the compute capability, for what depends on the compiler")
    )
    validation: Annotated[str, OneOf(("datasheet", "measured"))] = Field(
        description="whether simulated figures were ever held against this machine's own, or rest on data sheets alone"
    )
    hbm: Hbm = Field(description="the device memory")
    l2: L2 | None = Field(default=None, description="the shared cache; without it SRAM fills are HBM reads")
    sm: Sm = Field(description="the SMs")
    launch: Launch = Field(description="what starting a kernel costs")
    host: Host = Field(description="the link to the host")
    calibrated: Calibrated | None = Field(
        default=None, description="constants fitted to measurements; without it kernels are replayed by their trace"
    )
    tiles: tuple[TileChoice, ...] = Field(description="default tiles; the first that fits is taken")

    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def sources(self) -> Mapping[str, str]:
        """Where each number comes from, by dotted key ("sm.sram.capacity_bytes"; "tiles" for all of them)."""
        return self._sources

    @property
    def sram_bandwidth_bytes_per_s(self) -> float:
        """The SRAM bandwidth of all SMs together."""
        return self.sm.sram.bandwidth_bytes_per_clock * self._sm_clocks_per_s

    @property
    def exp_per_s(self) -> float:
        """Exponentials per second of all SMs together."""
        return self.sm.pipes.exp_per_clock["float32"] * self._sm_clocks_per_s

    @property
    def alu_per_s(self) -> float:
        """Elementwise float32 operations per second of all SMs together; a fused multiply-add is one."""
        return self.sm.pipes.alu_per_clock["float32"] * self._sm_clocks_per_s

    def tensor_flop_per_s(self, dtype: str) -> float:
        """FLOP per second of dot products with `dtype` inputs, all SMs together, on the pipe where they run: the
        tensor pipe, or the ALU pipe for a dtype that the tensor pipe lacks."""
        return self.sm.pipes.dot_flop_per_clock(dtype) * self._sm_clocks_per_s

    @property
    def _sm_clocks_per_s(self) -> float:
        return self.sm.count * self.sm.clock_hz

    @field_validator("tiles")
    @classmethod
    def _has_a_tile(cls, tiles: tuple[TileChoice, ...]) -> tuple[TileChoice, ...]:
        if not tiles:
            raise _fault("is empty: give at least one [[tiles]] with block_m, block_n, num_warps and num_stages")
        return tiles

    @model_validator(mode="after")
    def _parts_agree(self) -> Gpu:
        faults = list(_disagreements(self))
        if faults:
            raise PydanticCustomError("sentences", "{text}", {"text": " ".join(faults), "sentences": faults})
        return self


def _disagreements(gpu: Gpu) -> list[str]:
    """Sentences about values that are each right and do not go together."""
    faults = []
    sm, sram = gpu.sm, gpu.sm.sram
    if sram.reserved_per_block_bytes >= sram.capacity_bytes:
        faults.append(
            f"sm.sram.reserved_per_block_bytes is {sram.reserved_per_block_bytes}, but must be less than "
            f"sm.sram.capacity_bytes, {sram.capacity_bytes}."
        )
    elif sram.block_limit_bytes + sram.reserved_per_block_bytes > sram.capacity_bytes:
        faults.append(
            f"sm.sram.block_limit_bytes is {sram.block_limit_bytes}, but sm.sram.capacity_bytes is "
            f"{sram.capacity_bytes}, of which each block has {sram.reserved_per_block_bytes} reserved: "
            f"give at most {sram.capacity_bytes - sram.reserved_per_block_bytes}, or more capacity."
        )
    if sm.registers is None and sm.warp_unit != 1:
        faults.append(
            "sm.warp_unit only rounds up warps for their registers: leave it out (none) without [sm.registers]."
        )
    if sm.registers is not None and sm.registers.per_thread_limit > sm.registers.per_sm:
        faults.append(
            f"sm.registers.per_thread_limit is {sm.registers.per_thread_limit}, but must be at most "
            f"sm.registers.per_sm, {sm.registers.per_sm}."
        )
    if gpu.l2 is not None and (gpu.l2.dirty_limit_bytes or 0) > gpu.l2.capacity_bytes:
        faults.append(
            f"l2.dirty_limit_bytes is {gpu.l2.dirty_limit_bytes}, but must be at most l2.capacity_bytes, "
            f"{gpu.l2.capacity_bytes}."
        )
    if (gpu.calibrated is None) != (sm.core is None):
        given, missing = ("sm.core", "calibrated") if gpu.calibrated is None else ("calibrated", "sm.core")
        faults.append(
            f"{given} is given without {missing}: the replay of compiled kernels needs both; give both or neither."
        )
    faults += [
        f"tiles.{index}.num_warps is {tile.num_warps}, but must be at most sm.max_warps, {sm.max_warps}."
        for index, tile in enumerate(gpu.tiles)
        if tile.num_warps > sm.max_warps
    ]
    return faults
