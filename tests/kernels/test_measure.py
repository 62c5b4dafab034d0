"""Does measuring keep what it has, go on where it stopped, and trust no counter that is not there?"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from memsim_kernels import _command_measure, _ncu
from memsim_kernels._grids import GRIDS, Point, measured_points
from memsim_kernels._provenance import add_run, clocks_in_launches, path_beside
from memsim_kernels._rows import rows_of_point
from memsim_kernels.measure import Session, refusal_of
from rich.console import Console

from memsim import Attention, MemsimError, Tile
from memsim._cli_parse import Line, build_app, parse
from memsim._ncu_cells import Cell
from memsim.grid import ORDERS
from memsim.measurements import Measurement, read_measurements
from memsim.ncu import ExportedLaunch

FLASH = Point("flash", Attention(heads=2, seq_len_q=128, seq_len_k=128, head_dim=64), Tile(64, 64, 4, 2))
NAIVE = replace(FLASH, algorithm="naive")


def figures(rows: tuple[Measurement, ...], **values: float) -> list[Measurement]:
    return [replace(row, values=values) for row in rows]


def test_a_session_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    first = Session(path, "h200")
    assert first.lacks(FLASH, "event_time_s") and first.lacks(NAIVE, "sram_fill_bytes")
    first.add(figures(rows_of_point(FLASH, "h200"), event_time_s=1e-5, registers=100))
    first.add(figures(rows_of_point(NAIVE, "h200")[:2], event_time_s=2e-5))
    later = Session(path, "h200")
    assert len(later.rows) == 3
    assert not later.lacks(FLASH, "event_time_s") and later.lacks(FLASH, "sram_fill_bytes")
    assert later.lacks(NAIVE, "event_time_s")
    later.add(figures(rows_of_point(FLASH, "h200"), sram_fill_bytes=98304))
    (row,) = [row for row in read_measurements(path).rows if row.kernel == "flash"]
    assert dict(row.values) == {"event_time_s": 1e-5, "registers": 100, "sram_fill_bytes": 98304}
    assert [row.kernel for row in read_measurements(path).rows] == ["flash", "qk", "softmax"]


def test_a_launch_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    session = Session(tmp_path / "m.csv", "h200")
    session.add([replace(row, error="did not launch: too much") for row in rows_of_point(FLASH, "h200")])
    assert not Session(tmp_path / "m.csv", "h200").lacks(FLASH, "event_time_s")


def test_rows_say_how_the_kernels_run() -> None:
    qk, softmax, pv = rows_of_point(NAIVE, "h200")
    assert (qk.grid_order, softmax.grid_order, pv.grid_order) == ("keys-fast", "rows-fast", "rows-fast")
    assert (softmax.block_m, softmax.block_n) == (1, 0) and (pv.block_m, pv.block_n) == (64, 64)
    long = replace(NAIVE, problem=replace(NAIVE.problem, seq_len_k=40_000))
    assert rows_of_point(long, "h200")[1].block_n == 4096
    none = replace(NAIVE, problem=replace(NAIVE.problem, seq_len_k=0))
    assert [row.kernel for row in rows_of_point(none, "h200")] == ["softmax", "pv"]


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_large_enough_and_fits(name: str) -> None:
    points = list(measured_points(name))
    assert len(set(points)) == len(points)
    flash = [point for point in points if (point.algorithm, point.cache_state) == ("flash", "cold")]
    shapes = {replace(point.problem, causal=False) for point in flash}
    assert len(shapes) >= 14 and len({p.tile for p in flash}) >= 16
    for shape in shapes:
        masks = [point.problem.causal for point in flash if replace(point.problem, causal=False) == shape]
        assert set(masks) == {False, True}
    assert [str(point) for point in points if refusal_of(point, "h200")] == []


def test_every_grid_order_is_measured_on_the_same_kernels() -> None:
    points = list(measured_points("grid-orders"))
    plain = Counter((point.problem, replace(point.tile, grid_order="rows-fast")) for point in points)
    assert sorted(plain.values()) == [2, *[len(ORDERS)] * 8]
    assert [str(point) for point in points if refusal_of(point, "h200")] == []
    (row,) = rows_of_point(points[3], "h200")
    assert row.grid_order == points[3].tile.grid_order == "longest-first" and row.tile == points[3].tile


@pytest.mark.parametrize("name", GRIDS)
def test_naive_is_measured_cold_and_in_its_chain_where_s_is_small(name: str) -> None:
    naive = [point for point in measured_points(name) if point.algorithm == "naive"]
    assert {point.cache_state for point in naive} == {"cold", "chained"}
    assert len({replace(point, cache_state="cold") for point in naive}) * 2 == len(naive)
    sizes = [p.batch * p.heads * p.seq_len_q * p.seq_len_k * p.dtype_bytes for p in (point.problem for point in naive)]
    assert max(sizes) <= 4.5e9 and (name != "judge" or max(sizes) > 4e9)
    assert not {131072, 65536} & {point.problem.seq_len_k for point in naive}


def test_no_problem_is_fitted_to_and_judged_by() -> None:
    fit, judge = ({replace(p.problem, causal=False) for p in measured_points(name)} for name in GRIDS)
    assert not fit & judge
    tiles = {name: {p.tile for p in measured_points(name)} for name in GRIDS}
    assert len(tiles["judge"] - tiles["fit"]) == 4


@pytest.mark.parametrize(
    ("given", "states"),
    [
        (["flash", "--seq-len=128"], {("flash", "cold")}),
        (["flash", "--seq-len=128", "--cache-state=all"], {("flash", "cold"), ("flash", "chained"), ("flash", "warm")}),
        (["naive", "--seq-len=128", "--cache-state=all"], {("naive", "cold"), ("naive", "chained")}),
        (["--seq-len=128", "--cache-state=warm"], {("flash", "warm")}),
        ([], {("flash", "cold"), ("naive", "cold"), ("naive", "chained"), ("flash", "chained"), ("flash", "warm")}),
        (["naive", "--grid=judge", "--cache-state=chained"], {("naive", "chained")}),
    ],
)
def test_the_cache_states_that_are_measured(given: list[str], states: set[tuple[str, str]]) -> None:
    points = _command_measure._points(line_of(given), "h200")
    assert {(point.algorithm, point.cache_state) for point in points} == states


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--grid=test"], 'grid is "test"; it must be one of fit, judge, grid-orders'),
        (["--cache-state=hot"], 'cache-state is "hot"; it must be one of cold, chained, warm, all'),
        (["--grid=fit", "--heads=4"], "--grid is given beside a problem or a tile"),
    ],
)
def test_grids_and_cache_states_that_there_are_not(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from memsim.cli import run

    assert run(["measure", *given]) == 2
    assert words in capsys.readouterr().err


def test_a_launch_of_naive_right_after_itself_is_refused() -> None:
    with pytest.raises(MemsimError, match="nothing of what was asked for is measured warm"):
        _command_measure._points(line_of(["naive", "--seq-len=128", "--cache-state=warm"]), "h200")


def line_of(given: list[str]) -> Line:
    specs = {"measure": _command_measure.SPEC}
    line = parse(build_app(specs.values(), "0", ""), specs, ["measure", *given], Console())
    assert line is not None and not line.faults
    return line


def test_what_is_not_offered_is_not_launched() -> None:
    wrong = replace(FLASH, tile=Tile(128, 64, 4, 3, "descriptor-ws"))
    assert "none of the warp-specialised ones seen right" in refusal_of(wrong, "h200")
    large = replace(FLASH, tile=Tile(128, 128, 8, 4), problem=replace(FLASH.problem, head_dim=128))
    assert "needs 294912 B of 232448 B" in refusal_of(large, "h200")


def launch(name: str, blocks: int, **metrics: str) -> ExportedLaunch:
    found = {
        {"fills": "l1tex__m_xbar2l1tex_read_bytes.sum", "stores": "l1tex__m_l1tex2xbar_write_bytes.sum"}[key]: value
        for key, value in metrics.items()
    }
    return ExportedLaunch(
        "1/1", name, 3, 128, blocks, "sm_90", {key: Cell(value, "byte", 3) for key, value in found.items()}
    )


def test_counters_go_to_the_launch_that_they_are_of() -> None:
    (row,) = _ncu._assigned([FLASH], [launch("flash_pointer_kernel", 4, fills="163840", stores="32768")], "h200")
    assert dict(row.values) == {"sram_fill_bytes": 163840, "sram_store_bytes": 32768}
    for wrong, words in (
        ([], "1 launches were to be profiled, and ncu's export has 0"),
        ([launch("flash_pointer_kernel", 4, fills="163840")], "lacks sram_store_bytes of flash"),
        ([launch("flash_pointer_kernel", 5, fills="1", stores="1")], "ran 5 blocks"),
        ([launch("qk_kernel", 8, fills="1", stores="1")], "flash was to be profiled"),
        ([launch("flash_pointer_kernel", 4, fills="n/a", stores="1")], "n/a"),
    ):
        with pytest.raises(MemsimError, match=words):
            _ncu._assigned([FLASH], wrong, "h200")


@pytest.mark.parametrize("state", ["chained", "warm"])
def test_caches_that_are_left_alone_are_counted_in_one_pass(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ncu is told to leave them, asked for what one pass gives, and not believed if it took more."""
    fake = tmp_path / "ncu"
    fake.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n'
        "while [ $# -gt 0 ]; do [ \"$1\" = --log-file ] && out=$2; shift; done\n"
        f'cp {tmp_path}/export "$out"\n'
    )  # fmt: skip
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    header = '"ID","Kernel Name","Grid Size","profiler__replayer_passes","l1tex__m_xbar2l1tex_read_bytes.sum"\n'
    export = header + '"","","","pass","byte"\n"0","flash_pointer_kernel","(2, 2, 1)","{}","163840"\n'
    point = replace(FLASH, cache_state=state)
    (tmp_path / "export").write_text(export.format(1))
    (row,) = _ncu.profile([point], "h200")
    assert (row.cache_state, dict(row.values)) == (state, {"sram_fill_bytes": 163840})
    asked = (tmp_path / "asked").read_text()
    assert "--cache-control none" in asked and "dram__bytes_read.sum" in asked and "smsp__inst_executed" not in asked
    (tmp_path / "export").write_text(export.format(3))
    with pytest.raises(MemsimError, match="ncu took 3 passes over flash_pointer_kernel"):
        _ncu.profile([point], "h200")
    (tmp_path / "export").write_text(export.format(1).replace("profiler__replayer_passes", "other"))
    with pytest.raises(MemsimError, match="ncu took an unknown number of passes"):
        _ncu.profile([point], "h200")


def test_cold_launches_are_flushed_by_ncu_and_counted_whole() -> None:
    assert _ncu.FLAGS["cold"][-1] == "all" and _ncu.FLAGS["chained"][-1] == _ncu.FLAGS["warm"][-1] == "none"
    (point,) = (_ncu.point_of(json.loads(json.dumps(asdict(p)))) for p in [replace(FLASH, cache_state="warm")])
    assert point == replace(FLASH, cache_state="warm")


def test_without_ncu_there_are_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MemsimError, match="ncu is not installed here"):
        _ncu.profile([FLASH], "h200")


def test_an_ncu_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "ncu"
    fake.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --log-file ] && out=$2; shift; done\n"
        "echo '==ERROR== Failed to find metric dram__bytes_red.sum' > \"$out\"\nexit 1\n"
    )  # fmt: skip
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(
        MemsimError, match=r"could not count these launches: ==ERROR== Failed to find metric dram__bytes"
    ):
        _ncu.profile([FLASH], "h200")


def test_provenance_stands_beside_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    add_run(path, {"date": "one"})
    add_run(path, {"date": "two"})
    told = json.loads(path_beside(path).read_text(encoding="utf-8"))
    assert path_beside(path).name == "m.provenance.json"
    assert told["schema"] == "memsim.provenance/1" and [run["date"] for run in told["runs"]] == ["one", "two"]


def test_clocks_are_cycles_over_time() -> None:
    rows = figures(rows_of_point(NAIVE, "h200"), sm_cycles=15_000, duration_s=1e-5)
    assert clocks_in_launches([rows[0], replace(rows[1], values={})]) == {"lowest": 1500, "highest": 1500}
    assert clocks_in_launches([]) is None


def test_an_export_is_imported_with_its_problem_and_tile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from memsim.cli import run

    export, out = tmp_path / "export.csv", tmp_path / "m.csv"
    export.write_text(
        '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
        '"0","flash_pointer_kernel","(128, 1, 1)","(2, 2, 1)","l1tex__m_xbar2l1tex_read_bytes.sum","byte","163,840"\n'
    )
    given = ["--seq-len=128", "--heads=2", "--head-dim=64", "--block-m=64", "--block-n=64", "--num-warps=4"]
    for _ in range(2):
        assert run(["measure", "--import-ncu", str(export), "--out", str(out), *given, "--num-stages=2"]) == 0
    assert [row.values["sram_fill_bytes"] for row in read_measurements(out).rows] == [163840]
    export.write_text(export.read_text().replace("xbar2l1tex_read", "l1tex2xbar_write").replace("163,840", "32,768"))
    assert run(["measure", "--import-ncu", str(export), "--out", str(out), *given, "--num-stages=2"]) == 0
    (row,) = read_measurements(out).rows
    assert dict(row.values) == {"sram_fill_bytes": 163840, "sram_store_bytes": 32768}
    assert run(["measure", "--import-ncu", str(export), "--out", str(out), *given]) == 2
    assert "an export does not say its tile: give --num-stages" in capsys.readouterr().err
    assert _command_measure.SPEC.name == "measure"


@pytest.mark.parametrize("spoil", ["column", "twice"])
def test_what_would_be_lost_is_refused(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "m.csv"
    Session(path, "h200").add(figures(rows_of_point(FLASH, "h200"), registers=100))
    header, row = path.read_text().splitlines()
    path.write_text(f"{header},note\n{row},mine\n" if spoil == "column" else f"{header}\n{row}\n{row}\n")
    before = path.read_text()
    with pytest.raises(MemsimError, match='column "note"' if spoil == "column" else "is there twice"):
        Session(path, "h200")
    assert path.read_text() == before


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real.csv")
    Session(link, "h200").add(figures(rows_of_point(FLASH, "h200"), registers=100))
    assert link.is_symlink() and len(read_measurements(tmp_path / "real.csv").rows) == 1


def test_nothing_to_launch_is_said() -> None:
    empty = replace(FLASH, problem=replace(FLASH.problem, seq_len_q=0))
    assert refusal_of(empty, "h200") == "O is empty: there is nothing to launch."
