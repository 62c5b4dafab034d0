"""At which SRAM size and HBM bandwidth does FlashAttention pay, and where does it stop?"""

from textwrap import fill

from memsim import load_gpu, sweep
from memsim.gpu import apply_options

BALANCES, SRAM_KIB, LENGTHS = (304, 76, 19, 4.75), (20, 32, 64, 128), (1024, 2048)
SHAPES = [f"{m}x{n}" for m in (16, 32, 64, 128) for n in (16, 32, 64) if n <= m]
TWO_LEVEL = {"gpu": "two-level", "sms": "16", "heads": 4, "seq-len": 512, "head-dim": 128}
H200 = {"gpu": "h200", "heads": 8, "head-dim": 128}


def flop_per_byte(gpu: str, bandwidth: float = 0, **fields: str) -> float:
    """FLOPs of the tensor pipes while a byte crosses HBM, at this bandwidth or as shipped."""
    machine = apply_options(load_gpu(gpu), fields)
    rate = machine.sm.pipes.tensor_flop_per_clock["float16"] * machine.sm.count * machine.sm.clock_hz
    return rate / (bandwidth or machine.hbm.bandwidth_bytes_per_s)


def leanest(algorithm: str, kib: int) -> list[tuple[str, int]]:
    """The tiles, with their stages, that move the fewest bytes with 1 or 2 stages and at least 1 or 2 blocks an SM."""
    axes, options = {"num-stages": [1, 2], "tile": SHAPES}, {**TWO_LEVEL, "sram": f"{kib}KiB"}
    ok = [row for row in sweep(algorithm, axes, options, count_only=True).rows if row.status == "ok"]
    fit = [[r for r in ok if r.num_stages == s and r.blocks_per_sm >= blocks] for s in (1, 2) for blocks in (1, 2)]
    return sorted({(r.point["tile"], r.num_stages) for r in (min(f, key=lambda r: r.hbm_bytes) for f in fit if f)})


def fastest(algorithm: str, at: int) -> list[tuple[float, int]]:
    """Seconds and HBM bytes at each balance: of the leanest tiles at so many KiB of two-level, or of an H200's at N."""
    plans = [H200 | {"seq-len": at}]
    if at in SRAM_KIB:
        sides = [(*tile.split("x"), stages) for tile, stages in leanest(algorithm, at)]
        plans = [TWO_LEVEL | {"sram": f"{at}KiB", "block-m": m, "block-n": n, "num-stages": s} for m, n, s in sides]
    # FLOPs a byte at 1 byte/s are FLOPs a second.
    flops = flop_per_byte("two-level", 1, sms="16") if at in SRAM_KIB else flop_per_byte("h200", 1)
    axis = {"hbm-bandwidth": [round(flops / balance) for balance in BALANCES]}
    tables = [[(row.time_s, row.hbm_bytes) for row in sweep(algorithm, axis, plan).rows] for plan in plans]
    return [min(found) for found in zip(*tables, strict=True)]


def main() -> None:
    shipped = ", ".join(f"{gpu} {flop_per_byte(gpu):.0f}" for gpu in ("two-level", "a100-40gb", "h200"))
    print("Time of naive over flash's, in brackets HBM bytes; d = 128, float16. Columns: FLOPs that the tensor pipes")
    print(f"do while a byte crosses HBM, the fewer the faster HBM is (as shipped: {shipped}).")
    titles = {SRAM_KIB[0]: "two-level with 16 SMs, 4 heads, N = 512", LENGTHS[0]: "h200, 8 heads"}
    gain = {}
    for at in SRAM_KIB + LENGTHS:
        if at in titles:
            print(f"\n{titles[at]:40}" + "".join(f"{balance:>13}" for balance in BALANCES))
        pairs = list(zip(fastest("naive", at), fastest("flash", at), strict=True))
        gain[at] = [naive[0] / flash[0] for naive, flash in pairs]
        label = f"{at} KiB of SRAM" if at in SRAM_KIB else f"N = {at:,}, S of {16 * at * at / 1e6:.0f} MB"
        cells = [f"{t:.2f} ({naive[1] / flash[1]:.1f})" for t, (naive, flash) in zip(gain[at], pairs, strict=True)]
        print(f"{label:42}" + "".join(f"{cell:>13}" for cell in cells))
    least, most = SRAM_KIB[0], SRAM_KIB[-1]
    lost = [(at, b) for at in SRAM_KIB for t, b in zip(gain[at], BALANCES, strict=True) if t < 1]
    stages = max(stages for at, _ in lost for _, stages in leanest("flash", at))
    held, beyond = (gain[n] for n in LENGTHS)
    print("\n" + fill(
        f"Answer: on two levels flash is {gain[least][0]:.1f} to {gain[most][0]:.1f} times as fast where HBM is slow,"
        f" the more the more SRAM, and {gain[most][-1]:.1f} times with {most} KiB where it is fast; it stops paying at"
        f" {' and '.join(f'{at} KiB with {b:g}' for at, b in lost)}, where none of its tiles has room for more than"
        f" {stages} stage, so that its math waits for each tile; on an H200 it is {min(held):.1f} times as fast"
        f" whatever HBM does while the L2 holds S, and {min(beyond):.1f} to {max(beyond):.1f} times otherwise.", 110,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
