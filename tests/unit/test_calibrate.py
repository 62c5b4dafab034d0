"""Does a fit find constants again from what they lead to, write them where they belong, and say how good they are?"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from memsim import MemsimError, calibrate, load_gpu
from memsim._calibrated_file import calibrated_text
from memsim._command_calibrate import sources_of
from memsim._gpu_files import gpu_from_table, machine_text
from memsim._simulated import Simulator
from memsim.calibrate import BOUNDS, Calibration, clocks_of, split, usable
from memsim.gpu import Calibrated, Gpu
from memsim.measurements import Measurement, write_measurements

from .measured import memsim_, row_of

# The shipped constants change with every fit.
_SHIPPED = load_gpu("h200").calibrated
assert _SHIPPED is not None
MADE_UP = _SHIPPED.model_copy(
    update={
        "launch_cycles": 1500,
        "barrier_cycles": 26,
        "exp_cycles": 21.5,
        "product_end_cycles": 35,
        "clock_hz": 1.8e9,
    }
)
H200 = load_gpu("h200").model_copy(update={"calibrated": MADE_UP})
FEW = {name: BOUNDS[name] for name in ("launch_cycles", "barrier_cycles", "exp_cycles", "product_end_cycles")}


def constants(gpu: Gpu = H200) -> Calibrated:
    assert gpu.calibrated is not None
    return gpu.calibrated


def launch(length: int, *, block_n: int = 64, state: str = "cold", kernel: str = "flash") -> Measurement:
    columns = 0 if kernel == "softmax" else block_n
    row = row_of(kernel, seq_len_q=64, seq_len_k=length, heads=1, block_n=columns)
    return dataclasses.replace(row, cache_state=state)


def measured(rows: list[Measurement], gpu: Gpu) -> list[Measurement]:
    """The rows as a machine with these constants would have them."""
    simulator = Simulator(gpu)
    found = []
    for row in rows:
        replayed = simulator.launch(row).replayed()
        times = {"sm_cycles": round(replayed["sm_cycles"]), "duration_s": replayed["time_s"]}
        found.append(dataclasses.replace(row, values={**row.values, **times}))
    return found


def other_machine(**changed: float) -> Gpu:
    return H200.model_copy(update={"calibrated": constants().model_copy(update=changed)})


CLOCKED = dict.fromkeys(calibrate.CLOCKS, "made up")
LENGTHS = (64, 128, 256, 512, 1024)


@pytest.fixture(scope="module")
def rows() -> list[Measurement]:
    """As a machine would have them that takes longer to launch, to multiply and at barriers, and for exponentials."""
    table = constants()
    slower = other_machine(
        launch_cycles=1.25 * table.launch_cycles, product_end_cycles=1.3 * table.product_end_cycles,
        barrier_cycles=1.2 * table.barrier_cycles,
    )  # fmt: skip
    return measured([launch(length, block_n=n) for length in LENGTHS for n in (32, 64)], slower)


def test_a_fit_comes_near_a_machine_with_other_constants(
    rows: list[Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "BOUNDS", FEW)
    kept: list[Calibration] = []
    found = calibrate.calibrate(H200, rows, most_iterations=3, keep=kept.append)
    assert found.left_out is not None and found.left_out_before is not None
    assert found.fitted_before.mean > 0.04 and found.left_out_before.mean > 0.04
    assert found.fitted.mean < 0.01 and found.left_out.mean < 0.01
    assert (found.fitted.problems, found.left_out.problems) == (4, 1)
    assert found.constants.launch_cycles > 1.05 * constants().launch_cycles
    # Nothing that was not to be fitted moved, but for the clocks.
    moved = {n for n, value in found.constants.model_dump().items() if value != constants().model_dump()[n]}
    assert moved <= {*FEW, *calibrate.CLOCKS}
    assert [k.iterations for k in kept] == list(range(1, len(kept) + 1)) and kept[-1] == found


def test_constants_that_are_not_asked_for_stay_as_they_are(
    rows: list[Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "BOUNDS", FEW)
    found = calibrate.calibrate(H200, rows, most_iterations=1, only=["launch_cycles"])
    moved = {n for n, value in found.constants.model_dump().items() if value != constants().model_dump()[n]}
    assert "launch_cycles" in moved and moved <= {"launch_cycles", *calibrate.CLOCKS}


def test_a_machine_that_is_right_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "BOUNDS", FEW)
    found = calibrate.calibrate(H200, measured([launch(length) for length in LENGTHS], H200), most_iterations=1)
    assert found.fitted.mean < 1e-3
    for name, value in found.constants.model_dump().items():
        assert value == pytest.approx(constants().model_dump()[name], rel=0.02)


def test_processes_find_what_one_finds(rows: list[Measurement], monkeypatch: pytest.MonkeyPatch) -> None:
    few = dict(list(FEW.items())[:1])
    monkeypatch.setattr(calibrate, "BOUNDS", few)
    one, two = (calibrate.calibrate(H200, rows[:4], most_iterations=1, jobs=jobs) for jobs in (1, 2))
    assert one == two


def test_constants_stay_within_their_bounds(rows: list[Measurement], monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the rows would have it: launches that take four times as long."""
    monkeypatch.setattr(calibrate, "BOUNDS", {"launch_cycles": (500, 1600)})
    slow = [dataclasses.replace(row, values=row.values | {"sm_cycles": 4 * row.values["sm_cycles"]}) for row in rows]
    assert calibrate.calibrate(H200, slow, most_iterations=1).constants.launch_cycles == 1600


def test_every_constant_is_fitted_or_read_off() -> None:
    assert {*BOUNDS, *calibrate.CLOCKS} == {*Calibrated.model_fields}
    for name, (low, high) in BOUNDS.items():
        assert low <= constants().model_dump()[name] <= high, name
        assert low <= constants(load_gpu("h200")).model_dump()[name] <= high, name


def test_one_that_is_far_off_does_not_decide(rows: list[Measurement]) -> None:
    """A row that is off by a factor of three pulls with less than a plain mean of squares would have it."""
    errors = np.array([0.02, -0.02, 1.1])
    slopes = np.array([[1.0], [1.0], [1.0]])
    plain = -errors.mean()
    (change, *_) = calibrate._changes(slopes, errors, ["launch_cycles"])
    assert abs(change["launch_cycles"]) < 0.2 * abs(plain)


def test_whole_problems_are_left_out_and_tiles_take_turns() -> None:
    rows = [launch(64 * n, block_n=b) for n in range(1, 13) for b in (16, 32, 64)]
    fitted, left = split(rows, 9)
    assert len(fitted) == len(left) == 9
    assert not {row.problem for row in fitted} & {row.problem for row in left}
    assert {row.problem.seq_len_k for row in left} == {256, 512, 768}
    assert {b: sum(row.block_n == b for row in fitted) for b in (16, 32, 64)} == {16: 3, 32: 3, 64: 3}
    # From all over: not the first three problems only.
    assert max(row.problem.seq_len_k for row in fitted) > 5 * 64


def test_warm_failed_and_long_launches_are_not_fitted_to() -> None:
    good = dataclasses.replace(launch(256), values={"sm_cycles": 1000})
    long = dataclasses.replace(
        row_of(seq_len_q=65_536, seq_len_k=65_536, heads=16, values={"sm_cycles": 10**9}), cache_state="cold"
    )
    bad = [
        dataclasses.replace(good, cache_state="warm"), dataclasses.replace(good, error="out of memory"),
        dataclasses.replace(good, values={}), long,
    ]  # fmt: skip
    assert usable([good, *bad]) == [good]


def test_clocks_are_read_off() -> None:
    def row(kernel: str, clock_hz: float) -> Measurement:
        values = {"sm_cycles": 10_000, "duration_s": 10_000 / clock_hz}
        return dataclasses.replace(launch(256, kernel=kernel), values=values)

    rows = [row("flash", 1.7e9), row("pv", 1.8e9), row("flash", 1.5e9), row("softmax", 1.95e9)]
    assert clocks_of(rows) == {"clock_hz": 1.7e9, "idle_tensor_clock_hz": 1.95e9}


# ---- the file


def test_the_file_has_the_new_constants_and_all_else_as_it_was() -> None:
    text = machine_text("h200")
    table = constants().model_copy(update={"launch_cycles": 1234.5, "clock_hz": 1.755e9})
    sources = {name: f'from "{name}"' for name in Calibrated.model_fields}
    shipped = load_gpu("h200")
    new = gpu_from_table(tomllib.loads(calibrated_text(text, table, sources)), sources_required=True)
    assert new.calibrated == table and new.validation == "measured"
    assert new.sources["calibrated.launch_cycles"] == 'from "launch_cycles"'
    changed = {"calibrated", "validation"}
    assert new.model_dump(exclude=changed) == shipped.model_dump(exclude=changed)
    others = {key: value for key, value in new.sources.items() if not key.startswith("calibrated.")}
    assert others == {key: value for key, value in shipped.sources.items() if not key.startswith("calibrated.")}
    # And again: nothing is there twice.
    assert calibrated_text(calibrated_text(text, table, sources), table, sources) == calibrated_text(
        text, table, sources
    )


def saved(tmp_path: Path, rows: list[Measurement]) -> str:
    path = tmp_path / "rows.csv"
    write_measurements(path, rows)
    return str(path)


def test_the_command_writes_what_it_prints(
    rows: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "BOUNDS", {"launch_cycles": BOUNDS["launch_cycles"]})
    out = tmp_path / "new.toml"
    judge = tmp_path / "judge.csv"
    write_measurements(judge, measured([launch(1536)], other_machine(launch_cycles=2000)))
    machine = tmp_path / "machine.toml"
    machine.write_text(calibrated_text(machine_text("h200"), MADE_UP, dict.fromkeys(BOUNDS, "made up") | CLOCKED))
    args = (
        saved(tmp_path, rows), "--gpu", str(machine), "--iterations", "1", "--jobs", "1", "--out", str(out), "--judge",
        str(judge),
    )  # fmt: skip
    code, text, err = memsim_("calibrate", *args, "--json")
    data = json.loads(text)
    assert (code, err) == (0, "") and data["schema"] == "memsim.calibrate/1"
    new = load_gpu(str(out))
    assert constants(new).model_dump() == data["constants"]
    assert constants(new).launch_cycles > constants().launch_cycles
    said = new.sources["calibrated.launch_cycles"]
    assert "rows.csv" in said and "8 rows of 4 problems" in said and "2 rows of 1 problems left out" in said
    assert "1 rows of judge.csv" in said
    # The clock came out as it was.
    assert new.sources["calibrated.clock_hz"] == load_gpu(str(machine)).sources["calibrated.clock_hz"]
    # The errors that it tells are those that validate finds.
    of_it = [abs(r["sm_cycles"] / row.values["sm_cycles"] - 1) for row, r in zip(
        rows, (Simulator(new).launch(row).replayed() for row in rows), strict=True
    )]  # fmt: skip
    told = (data["fitted"]["mean"] * 8 + data["left_out"]["mean"] * 2) / 10
    assert math.isclose(sum(of_it) / 10, told, rel_tol=1e-9)
    shown = " ".join(memsim_("calibrate", *args)[1].split())
    assert "launch_cycles" in shown and "rows fitted to 8 4" in shown and "rows that judge 1 1" in shown


def test_an_interrupted_fit_keeps_the_best_so_far(
    rows: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = constants().model_copy(update={"launch_cycles": 1777.0})
    error = calibrate.error_of(rows, np.zeros(len(rows)))

    def stopped(*_: object, keep: object, **__: object) -> None:
        assert callable(keep)
        keep(Calibration(constants(), table, 1, error, error))
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "calibrate", stopped)
    out = tmp_path / "new.toml"
    code, text, err = memsim_("calibrate", saved(tmp_path, rows), "--out", str(out))
    assert code == 130 and "after iteration 1" in err and "1777" in text
    assert constants(load_gpu(str(out))).launch_cycles == 1777
    monkeypatch.setattr(calibrate, "calibrate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert memsim_("calibrate", saved(tmp_path, rows))[0] == 130


def test_sources_name_every_constant_that_changed() -> None:
    error = calibrate.Error(3, 2, 0.04, 0.1, "line 2")
    now = Calibrated(**{name: value * 0.99 for name, value in constants().model_dump().items()})
    assert {*sources_of(Calibration(constants(), now, 1, error, error), "a.csv", None)} == {*Calibrated.model_fields}
    one = constants().model_copy(update={"sram_cycles": 1.0})
    assert {*sources_of(Calibration(constants(), one, 1, error, error), "a.csv", None)} == {"sram_cycles"}


BAD: list[tuple[Mapping[str, str], tuple[str, ...], str]] = [
    ({}, ("--gpu", "a100-80gb"), "has no [calibrated] table and [sm.core] to start from"),
    ({"sm_cycles": ""}, (), "no row has sm_cycles of a cold launch"),
    ({"cache_state": "warm"}, (), "no row has sm_cycles of a cold launch"),
    ({}, ("--only", "sram_cycles,luck"), "'luck' is not a constant that is fitted; give any of launch_cycles, "),
    ({}, ("--rows", "0"), "--rows is 0; give a whole number from 1 to 1000000."),
    ({}, ("--out", "x.csv"), 'out is "x.csv": give a file that ends in .toml.'),
    ({}, ("--out", "/no/such/x.toml"), 'out is "/no/such/x.toml", which cannot be written'),
    ({}, ("--judge", "nowhere.csv"), 'there is no file called "nowhere.csv"'),
    ({}, ("--jobs", "many"), '--jobs is "many"'),
]


@pytest.mark.parametrize(("cells", "args", "sentence"), BAD)
def test_bad_input_is_one_sentence(
    rows: list[Measurement], tmp_path: Path, cells: Mapping[str, str], args: tuple[str, ...], sentence: str
) -> None:
    row = rows[0]
    if "sm_cycles" in cells:
        row = dataclasses.replace(row, values={"duration_s": 1e-6})
    row = dataclasses.replace(row, cache_state=cells.get("cache_state", "cold"))
    code, out, err = memsim_("calibrate", saved(tmp_path, [row]), *args)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_a_problem_that_is_fitted_to_cannot_judge(rows: list[Measurement], tmp_path: Path) -> None:
    with pytest.raises(MemsimError, match="5 problems are among the rows to fit to and among those that judge"):
        calibrate.calibrate(H200, rows, judge=rows)
    assert memsim_("calibrate")[2].startswith("memsim: calibrate needs a FILE")
