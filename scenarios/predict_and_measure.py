"""How near to an H200's cycles and HBM bytes does the simulator come without launching anything?"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from textwrap import fill

from memsim import simulate
from memsim.measurements import read_measurements

# Rows of problems that no constant was fitted to: of each these tiles, which differ in shape, warps, stages, load path.
STORED = Path(__file__).parents[1] / "measurements" / "h200_judge.csv"
PROBLEMS = ("16×8192×128", "40×1536×128", "1×1024×128", "32×256/8192×128", "12×2048×64")
TILES = (
    "64×64, 4 warps, 2 stages", "64×64, 4 warps, 3 stages", "128×64, 8 warps, 3 stages", "128×128, 8 warps, 2 stages",
)  # fmt: skip


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else STORED
    print("An H200 beside the simulator, cold caches, pointer loads")
    print("                                                  thousand SM cycles          HBM read, MB")
    print("problem                tile                       measured  simulated     measured  simulated")
    off, hbm, orders, picks = [], [], 0, []
    times = defaultdict(list)
    for row in read_measurements(file).rows:
        name = row.name.split(", ")[0].removeprefix("flash ")
        if row.kernel != "flash" or row.cache_state != "cold" or row.error or name.split()[0] not in PROBLEMS:
            continue
        if str(row.tile) not in TILES:
            continue
        launch = simulate("flash", row.problem, gpu="h200", tile=row.tile).launch("flash")
        cycles, read = row.values["sm_cycles"], row.values["hbm_read_bytes"]
        print(
            f"{name:22} {row.tile!s:26} {cycles / 1e3:8,.0f} {launch.sm_cycles / 1e3:10,.0f}"
            f"   {read / 1e6:10,.1f} {launch.hbm_read_bytes / 1e6:10,.1f}"
        )
        off.append(abs(launch.sm_cycles / cycles - 1))
        hbm.append(abs(launch.hbm_read_bytes / read - 1))
        times[name].append((launch.sm_cycles, cycles))
    for found in times.values():
        orders += sorted(found) == sorted(found, key=lambda pair: pair[1])
        picks.append(min(found)[1] / min(measured for _, measured in found))
    print("\n" + fill(
        f"Answer: on {len(off)} launches cycles are {fmean(off):.1%} off on average and {max(off):.0%} at worst, HBM"
        f" reads {fmean(hbm):.1%} and {max(hbm):.0%}; the tiles of {orders} of {len(times)} problems come in the order"
        f" measured, and the one picked takes at most {max(picks):.2f} times the best.", 110,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
