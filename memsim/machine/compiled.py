"""A compiled kernel as a launch runs it."""

from __future__ import annotations

from dataclasses import dataclass

from memsim import stream
from memsim.gpu import Gpu
from memsim.machine.plan import ISSUE, LOOP, STORE, Environment, LaunchPlan
from memsim.machine.steps import WORD_OF_WARP_BYTES
from memsim.stream import Stream

# The carve-outs of SRAM from what it shares with the L1, in KiB (CUDA C++ Programming Guide, compute capability 9.0).
_CARVE_OUTS_KIB = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)
# Triton asks for all the SRAM there is where a block takes more than can be had without asking (driver.c, loadBinary).
_PREFERS_SRAM_ABOVE_BYTES = 48 << 10
_WARP_THREADS = 32


@dataclass(frozen=True)
class Compiled:
    """The compiled kernel of a launch: its instructions, the warps of a block that run them, what a thread spills, the
    SRAM of a block, the bytes of one box, the dtype of its products, the groups of warps that go their own way, and
    the warps of a block that only copy."""

    stream: Stream
    warps: int
    stack_bytes: int
    sram_bytes: int
    box_bytes: int
    dtype: str
    groups: int = 1
    copying_warps: int = 0

    @property
    def spilled_bytes(self) -> int:
        """What the threads of a block spill."""
        return self.warps * _WARP_THREADS * self.stack_bytes

    @property
    def loads_plainly(self) -> bool:
        """Whether what it loads goes through the L1: copies pass it by."""
        segments = self.stream.segments
        loads = any(i[0] == stream.LOAD for segment in segments for i in segment.instructions)
        return loads and not any(segment.copies for segment in segments)

    def further_trips(self, plan: LaunchPlan, coordinates: Environment) -> tuple[int, ...]:
        """How often a block goes through each loop of its kernel after the first: a loop of the trace is followed by
        one for its masked tiles."""
        made = [0] * len(self.stream.loops)
        loops = [step[1] for step in plan.body.steps if step[0] == LOOP]
        for number, body in enumerate(loops if made else ()):
            start, unmasked, stop = body.trips(coordinates)
            made[min(number, len(made) - 1)] += unmasked - start
            made[min(number + 1, len(made) - 1)] += stop - unmasked
        return tuple(made[1:])

    def l1_bytes(self, gpu: Gpu, per_sm: int) -> int:
        """Bytes of the L1 beside the SRAM of the resident blocks, which is carved out in steps."""
        assert gpu.sm.core is not None
        sram = per_sm * (self.sram_bytes + gpu.sm.sram.reserved_per_block_bytes)
        if self.sram_bytes > _PREFERS_SRAM_ABOVE_BYTES:
            sram = gpu.sm.sram.capacity_bytes
        carved = next((kib << 10 for kib in _CARVE_OUTS_KIB if kib << 10 >= sram), sram)
        return max(0, gpu.sm.core.l1_bytes - carved)

    def spills_beyond_l1(self, gpu: Gpu, per_sm: int) -> bool:
        """Whether the L1 cannot hold what the resident blocks spill."""
        return per_sm * self.spilled_bytes > self.l1_bytes(gpu, per_sm)

    def spill_miss_share(self, gpu: Gpu, per_sm: int) -> float:
        """The share of spilled words that the L1 no longer holds."""
        assert gpu.calibrated is not None
        if not self.spills_beyond_l1(gpu, per_sm):
            return 0.0
        held = max(1, self.l1_bytes(gpu, per_sm))
        return min(1.0, gpu.calibrated.spill_miss_share * per_sm * self.spilled_bytes / held)

    def used_shares(self, plan: LaunchPlan) -> tuple[float, float]:
        """Of the words that the instructions of a block without a loop load and store, the shares that are bytes of a
        tensor: lanes beyond a row are off, and of rows that are not whole words a lane takes half a word."""
        steps, moves = plan.body.steps, plan.body.moves
        if any(step[0] == LOOP for step in steps) or self.stream.loops:
            return 1.0, 1.0
        first = {name: 0 for name, _ in plan.axes}
        loads = [step[2] for step in steps if step[0] == ISSUE]
        stores = [step[1] for step in steps if step[0] == STORE]
        instructions = [i for segment in self.stream.segments for i in segment.instructions]

        def share(kind: int, used: list[int]) -> float:
            asked = sum(i[1] for i in instructions if i[0] == kind) * WORD_OF_WARP_BYTES * self.warps
            moved = sum(moves[number].at(first)[0] for number in used)
            return min(1.0, moved / asked) if moved and asked else 1.0

        return share(stream.LOAD, loads), share(stream.STORE, stores)
