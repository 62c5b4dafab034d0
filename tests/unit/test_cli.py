"""The command line: what it prints where, its exit codes, its sentences, and the JSON other tools rely on."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import memsim
from memsim import MemsimError, cli
from memsim._cli_parse import Line
from memsim._option_list import PROBLEM
from memsim._options import Faults
from memsim.sweep import COLUMNS

SMALL = ("--heads", "2", "--seq-len", "128", "--head-dim", "64")
COUNTED = (*SMALL, "--count-only")


def memsim_(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(args)
    return code, out.getvalue(), err.getvalue()


def json_of(*args: str) -> dict[str, Any]:
    code, out, err = memsim_(*args, "--json")
    assert (code, err) == (0, "")
    data: dict[str, Any] = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return data


def process(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[bytes]:
    env = os.environ | kwargs.pop("env", {})
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
    return subprocess.run([sys.executable, "-m", "memsim", *args], env=env, timeout=60, check=False, **kwargs)


# ---- JSON

LAUNCH = MappingProxyType({
    "name": str, "blocks": int, "blocks_per_sm": int, "limited_by": str, "waves": int, "sram_bytes": int,
    "registers": int, "registers_from": str, "sram_fill_bytes": int, "sram_fill_requested_bytes": int,
    "sram_store_bytes": int, "sram_store_requested_bytes": int, "hbm_read_bytes": int, "hbm_write_bytes": int,
    "l2_dirty_bytes_at_end": int, "flops": int, "useful_flops": int, "exps": int, "time_s": float,
    "sm_cycles": float, "bound": str, "busy": dict, "waiting_for_memory": float,
})  # fmt: skip
TOTAL = MappingProxyType({
    "sram_fill_bytes": int, "sram_store_bytes": int, "hbm_read_bytes": int, "hbm_write_bytes": int, "hbm_bytes": int,
    "flops": int, "useful_flops": int, "exps": int, "peak_hbm_bytes": int, "compulsory_bytes": int,
    "arithmetic_intensity": float, "over_compulsory": float, "launch_overhead_s": float, "time_s": float,
    "bound": str, "busy": dict, "waiting_for_memory": float,
})  # fmt: skip
RESULT = MappingProxyType({
    "schema": str, "algorithm": str, "gpu": str, "problem": dict, "tile": dict, "launches": list, "total": dict,
    "notes": list,
})  # fmt: skip


def has_shape(data: dict[str, Any], shape: MappingProxyType[str, type], unless: tuple[str, ...] = ()) -> None:
    for name, kind in shape.items():
        assert name in data, name
        if name not in unless:
            assert isinstance(data[name], kind), (name, data[name])


@pytest.mark.parametrize(("algorithm", "launches"), [("flash", ["flash"]), ("naive", ["qk", "softmax", "pv"])])
def test_simulate_json_has_the_shape_of_its_schema(algorithm: str, launches: list[str]) -> None:
    data = json_of("simulate", algorithm, *SMALL)
    has_shape(data, RESULT)
    assert data["schema"] == "memsim.result/1"
    assert [launch["name"] for launch in data["launches"]] == launches
    for launch in data["launches"]:
        has_shape(launch, LAUNCH)
    has_shape(data["total"], TOTAL)
    for name in ("sram_fill_bytes", "sram_store_bytes", "flops", "exps"):
        assert data["total"][name] == sum(launch[name] for launch in data["launches"])


def test_counted_json_has_the_same_keys_and_no_times() -> None:
    timed, counted = json_of("simulate", "flash", *SMALL), json_of("simulate", "flash", *COUNTED)
    assert list(timed["launches"][0]) == list(counted["launches"][0])
    assert list(timed["total"]) == list(counted["total"])
    assert counted["total"]["time_s"] is None and counted["launches"][0]["bound"] is None
    assert counted["total"]["hbm_bytes"] == json_of("simulate", "flash", *SMALL, "--l2", "none")["total"]["hbm_bytes"]
    assert counted["levels"] == ["hbm", "sram"] and counted["total"]["l2_read_bytes"] is None
    assert timed["levels"] == ["hbm", "l2", "sram"] and timed["total"]["l2_read_bytes"] > 0


def test_compare_json_has_the_shape_of_its_schema() -> None:
    data = json_of("compare", *SMALL)
    assert data["schema"] == "memsim.compare/1"
    assert data["naive"]["algorithm"] == "naive" and data["flash"]["algorithm"] == "flash"
    for side in ("naive", "flash"):
        has_shape(data[side], RESULT)
    assert data["ratios"]["hbm_bytes"] == data["naive"]["total"]["hbm_bytes"] / data["flash"]["total"]["hbm_bytes"]


def test_gpus_json_has_the_shape_of_its_schema() -> None:
    data = json_of("gpus")
    assert data["schema"] == "memsim.gpus/1"
    assert [gpu["name"] for gpu in data["gpus"]] == list(memsim.gpu_names())
    for gpu in data["gpus"]:
        assert gpu["validated"] in ("datasheet only", "measured")
        assert gpu["fields"]["sm.count"] == gpu["sms"]
        assert gpu["fields"]["hbm.bandwidth_bytes_per_s"] == gpu["hbm_bandwidth_bytes_per_s"]
        assert "sm.count" in gpu["sources"]
    assert [gpu["name"] for gpu in json_of("gpus", "h200")["gpus"]] == ["h200-sxm"]


def test_sweep_json_has_the_shape_of_its_schema() -> None:
    data = json_of("sweep", *COUNTED, "--vary", "block-m=32,64", "--vary", "causal=true,false")
    assert data["schema"] == "memsim.sweep/1"
    assert data["axes"] == [
        {"name": "block-m", "values": ["32", "64"]},
        {"name": "causal", "values": ["true", "false"]},
    ]
    assert data["points"] == len(data["rows"]) == 4
    assert data["options"] == {
        "algorithm": "flash", "gpu": "h200", "batch": "1", "heads": "2", "kv-heads": "2", "seq-len-q": "128",
        "seq-len-k": "128", "head-dim": "64", "dtype": "float16", "lse": "false", "inputs": "hbm",
        "l2-state": "cold",
    }  # fmt: skip
    assert data["counted_only"] is True and "The L2 is not counted" in data["notes"][0]
    for row in data["rows"]:
        assert set(row) == {"point", *COLUMNS} and row["notes"] == []
        assert row["block_m"] == int(row["point"]["block-m"]) and row["num_warps"] == 4
        assert row["status"] == "ok" and isinstance(row["hbm_bytes"], int) and row["time_s"] is None


@pytest.mark.parametrize("sizes", [("--seq-len", "0"), ("--seq-len-q", "0"), ("--seq-len-k", "0")])
def test_json_of_an_empty_problem_has_no_nan(sizes: tuple[str, ...]) -> None:
    for command in (("compare",), ("simulate", "flash"), ("simulate", "naive")):
        json_of(*command, "--heads", "2", *sizes)


# ---- what options do


def test_gpu_and_its_options_appear_as_given() -> None:
    data = json_of("simulate", "flash", *COUNTED, "--gpu", "h200", "--sram", "128KiB", "--set", "sm.count=7")
    assert data["gpu"] == "h200"
    assert data["gpu_options"] == {"sram": "128KiB", "sm.count": "7"}


def test_problem_options_reach_the_problem() -> None:
    problem = json_of(
        "simulate", "flash", "--count-only", "--batch=2", "--heads=4", "--kv-heads=2", "--seq-len=1Ki", "--seq-len-q=3",
        "--head-dim=32", "--dtype=bfloat16", "--causal", "--scale=-0.5",
    )["problem"]  # fmt: skip
    assert problem == {
        "batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 3, "seq_len_k": 1024, "head_dim": 32, "dtype": "bfloat16",
        "causal": True, "scale": -0.5,
    }  # fmt: skip


def test_tile_options_are_taken_together_with_the_default_tile() -> None:
    tile = json_of("simulate", "flash", *COUNTED, "--block-m", "128", "--num-stages", "1")["tile"]
    assert (tile["block_m"], tile["num_stages"]) == (128, 1)
    _, out, _ = memsim_("simulate", "flash", *COUNTED, "--block-m", "128")
    assert "block-m as asked for" in out
    _, out, _ = memsim_("simulate", "flash", *COUNTED)
    assert "the first of the GPU's tiles that fits" in out


def test_lse_and_host_inputs_change_the_result() -> None:
    plain, lse = json_of("simulate", "flash", *COUNTED), json_of("simulate", "flash", *COUNTED, "--lse")
    assert lse["total"]["sram_store_bytes"] == plain["total"]["sram_store_bytes"] + 2 * 128 * 4
    assert json_of("simulate", "flash", *COUNTED, "--no-lse") == plain
    assert json_of("simulate", "flash", *SMALL, "--inputs", "host")["total"]["host_s"] > 0


def test_gpu_short_options_and_fields_change_the_result() -> None:
    base = json_of("simulate", "flash", *SMALL)["total"]["time_s"]
    assert json_of("simulate", "flash", *SMALL, "--launch-overhead", "1ms")["total"]["time_s"] > base
    assert json_of("simulate", "flash", *SMALL, "--hbm-latency", "100us")["total"]["time_s"] > base
    assert json_of("simulate", "flash", *SMALL, "--clock", "100MHz")["total"]["time_s"] > 2 * base
    no_l2 = json_of("simulate", "flash", *SMALL, "--l2", "none")
    assert no_l2["levels"] == ["hbm", "sram"] and no_l2["total"]["l2_hit_rate"] is None


def test_l2_options_change_what_is_read_from_hbm() -> None:
    read = {}
    for args in ((), ("--l2", "none"), ("--l2", "1KiB"), ("--l2-state", "warm")):
        (launch,) = json_of("simulate", "flash", *SMALL, *args)["launches"]
        read[args] = launch["hbm_read_bytes"] - launch["code_bytes"]
    once = 3 * 2 * 128 * 64 * 2
    assert read[()] == once and read["--l2-state", "warm"] == 0
    assert once < read["--l2", "1KiB"] <= read["--l2", "none"] == 2 * (128 * 64 * 2 + 2 * 2 * 128 * 64 * 2)
    assert json_of("simulate", "flash", *SMALL, "--l2-state", "warm")["l2_state"] == "warm"


def test_gpu_file_is_read_and_named_as_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    code, template, _ = memsim_("gpus", "--template")
    assert code == 0
    path.write_text(template, encoding="utf-8")
    assert json_of("simulate", "flash", *COUNTED, "--gpu", str(path))["gpu"] == str(path)
    code, out, _ = memsim_("gpus", str(path))
    assert code == 0 and "my-gpu" in out
    # What the comment above its name promises.
    assert "# what refusals and memsim gpus call it; reports print the name given on the command line" in template
    assert str(path) in memsim_("simulate", "flash", *COUNTED, "--gpu", str(path))[1].replace("\n", "")
    warps = ("--set", "sm.max_warps=4", "--num-warps", "8", *(f"--set=tiles.{i}.num_warps=4" for i in range(4)))
    assert "does not fit on an SM of my-gpu" in memsim_("simulate", "flash", *COUNTED, "--gpu", str(path), *warps)[2]


def test_gpu_file_may_be_a_pipe() -> None:
    _, template, _ = memsim_("gpus", "--template")
    done = process("compare", *COUNTED, "--gpu", "/dev/stdin", "--sms", "3", input=template.encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"/dev/stdin (sms 3)" in done.stdout


def test_text_of_each_command_says_what_it_is_about() -> None:
    for args, words in {
        ("compare", *SMALL): ("qk", "softmax", "pv", "naive", "flash", "math waits for memory", "truck"),
        ("simulate", "naive", *SMALL): ("blocks per SM", "limited by", "registers from", "SRAM per block", "total"),
        ("gpus",): ("two-level", "936 GB/s", "192/192 KiB", "datasheet only"),
        ("gpus", "two-level"): ("sm.sram.capacity_bytes", "196,608", "the article"),
        ("sweep", *COUNTED, "--vary", "block-m=16,8"): (
            "Sweep of flash: 2 heads, seq-len 128, head-dim 64, float16",
            "h200 without its L2 (counted only): 132",
            "block-m as varied, the rest from",
            "16×64, 4, 3",
            "refused",
            "powers of two",
            "The L2 is not counted",
        ),
    }.items():
        code, out, err = memsim_(*args)
        assert (code, err) == (0, "")
        for word in words:
            assert word in out or word == "truck", (args, word)


def test_help_and_version() -> None:
    assert memsim_("--version") == (0, f"{memsim.__version__}\n", "")
    code, out, err = memsim_()
    assert (code, err) == (0, "") and all(name in out for name in ("gpus", "compare", "simulate", "sweep"))
    for name, spec in cli._SPECS.items():
        code, out, err = memsim_(name, "--help")
        assert (code, err) == (0, "")
        assert all(f"--{option.name}" in out for option in spec.options)
        assert "STR" not in out and "[ARGS" not in out and f"Usage: memsim {name} " in out


def test_help_names_values_and_defaults() -> None:
    out = " ".join(memsim_("sweep", "--help")[1].replace("│", " ").split())
    for part in (
        "memsim sweep [ALGORITHM] --vary AXIS=V1,V2,… [OPTIONS]", "One of naive, flash, flash1. [default: flash]",
        "--heads N Heads of Q. [default: 16]", "--seq-len N", "[default: 2048]", "--dtype DTYPE", "[default: float16]",
        "--gpu NAME_OR_FILE", "[default: h200]", "--sram SIZE", "--hbm-bandwidth RATE",
        "--l2 SIZE|none Size of the L2", "--l2-state cold|warm",
        "--inputs hbm|host", "--set KEY=VALUE", "--csv FILE", "the first of the GPU's tiles that fits",
    ):  # fmt: skip
        assert part in out, part
    assert "Usage: memsim simulate ALGORITHM [OPTIONS]" in memsim_("simulate", "--help")[1]
    assert "Usage: memsim gpus [NAME_OR_FILE] [OPTIONS]" in memsim_("gpus", "--help")[1]


def test_defaults_in_help_are_the_defaults() -> None:
    problem = memsim.Attention()
    for name in ("batch", "heads", "head-dim", "dtype"):
        assert PROBLEM[name].default == str(getattr(problem, name.replace("-", "_")))
    assert PROBLEM["seq-len"].default == str(problem.seq_len_q) == str(problem.seq_len_k)


def test_main_exits_with_the_code() -> None:
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as exit_:
        cli.main(["nonsense"])
    assert exit_.value.code == 2


def test_a_command_that_cannot_be_loaded_says_so_and_hinders_no_other() -> None:
    from importlib.metadata import EntryPoint

    from memsim.cli import _load

    command = _load(EntryPoint("broken", "memsim_of_nowhere:COMMAND", "memsim.commands"))
    assert command.spec.name == "broken"
    with pytest.raises(MemsimError, match=r"broken cannot be loaded from memsim_of_nowhere:COMMAND \(No module named"):
        command.run(Line("broken", None, {}, {}, Faults()))
