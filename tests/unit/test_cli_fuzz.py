"""Random command lines and machine files: an answer or sentences, never a traceback."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from memsim import cli
from memsim._cli_request import REQUEST
from memsim.gpu import template

# Values that mean something somewhere, and many that mean nothing. Sizes that would take long are left out or only
# counted.
COUNTS = st.sampled_from(["0", "1", "2", "3", "4", "8", "16", "33", "64", "65"])
JUNK = st.sampled_from(
    ["", " ", "-", "--", "=", "-1", "1.5", "nan", "inf", "1e400", "1e15", "9" * 50, "0x10", "none", "true", "2Gi",
     "[/]", "\x00", "\udcff", "é×", "{}", "../", "a=b", "float16", "flash", "--json", "1,2"]
)  # fmt: skip
VALUES = {
    "dtype": ["float16", "bfloat16", "float32"],
    "scale": ["0", "-0.5", "1e30", "1e31"],
    "block-m": ["16", "32", "64", "8"],
    "block-n": ["16", "32", "64", "128"],
    "num-warps": ["1", "4", "8", "3", "32"],
    "num-stages": ["1", "2", "3", "64"],
    "gpu": ["h200", "two-level", "a100-40gb", "rtx-4090", "b200", "h2OO", "/"],
    "hbm-capacity": ["1KB", "24GB", "900TB"],
    "hbm-bandwidth": ["2TB/s", "1B/s", "0"],
    "hbm-latency": ["0", "1s", "600ns"],
    "l2": ["none", "50MB", "1", "lots"],
    "l2-state": ["cold", "warm", "hot"],
    "sms": ["1", "7", "1000000"],
    "clock": ["1kHz", "1.7GHz"],
    "sram": ["1KiB", "1025", "96KiB", "1TB"],
    "sram-bandwidth": ["1B/s", "20TB/s"],
    "launch-overhead": ["0", "4us"],
    "host-bandwidth": ["1B/s", "50GB/s"],
    "inputs": ["hbm", "host", "disk"],
    "set": ["sm.count=3", "sm.cuont=3", "l2=none", "sm.registers=none", "architecture=none", "sm.warp_unit=1",
            "tiles.0.block_m=128", "tiles.9.block_m=1", "hbm.capacity_bytes=1e15", "=", "sm=1", "name=x",
            "sm.pipes.tensor_flop_per_clock=none", "sm.registers.per_sm=1", "sm.max_warps=1"],
}  # fmt: skip
NAMES = [option.name for option in REQUEST]
FLAGS = {option.name for option in REQUEST if option.flag} | {"no-lse", "json"}


def named_value(name: str) -> st.SearchStrategy[str]:
    good = st.sampled_from(VALUES[name]) if name in VALUES else COUNTS
    return st.one_of(*[good] * 9, JUNK)


@st.composite
def option(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from([*NAMES, "no-lse"]))
    if name in FLAGS:
        return [f"--{name}"]
    value = draw(named_value(name))
    return draw(st.sampled_from([[f"--{name}", value], [f"--{name}={value}"]]))


@st.composite
def axis(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from([*(n for n in NAMES if n != "set"), "algorithm", "sm.count", "nonsense", "sm.cuont"]))
    good = st.sampled_from(["true", "false"]) if name in FLAGS else named_value(name)
    values = draw(st.lists(good, min_size=draw(st.sampled_from([0, 1, 1, 1, 1])), max_size=2))
    return ["--vary", f"{name}={','.join(values)}"]


ODD = st.sampled_from(
    [*[[]] * 12, ["--"], ["-x"], ["--nonsense", "1"], ["--heads"], ["flash"], ["--help"], ["--json"], ["-5"]]
)
REQUEST = st.lists(option(), max_size=5).map(lambda lists: [token for tokens in lists for token in tokens])
VARIED = st.lists(axis(), max_size=3).map(lambda lists: [token for tokens in lists for token in tokens])
RUNS = [["compare"], ["simulate", "flash"], ["simulate", "naive"], ["simulate", "flash1"]]
WRONG = [["simulate"], ["simulate", "x"], ["nonsense"], [], ["--version"]]
GPUS = [["gpus"], ["gpus", "h200"], ["gpus", "/"], ["gpus", "x", "y"], ["gpus", "--template"]]
LINES = st.one_of(
    st.tuples(st.sampled_from(RUNS), REQUEST),
    st.tuples(st.just(["sweep"]), VARIED, REQUEST),
    st.tuples(st.sampled_from(WRONG), REQUEST),
    st.tuples(st.sampled_from(GPUS)),
).map(lambda parts: [token for part in parts for token in part])


def check(line: list[str]) -> None:
    """Run a line: it answers on standard output, or says in sentences why not."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(line)
    assert code in (0, 2), line
    if code == 2:
        assert err.getvalue() and not out.getvalue()
        for sentence in err.getvalue().splitlines():
            assert sentence.startswith("memsim: ") and sentence[-1] in ".?" and "error" not in sentence.lower()
    else:
        assert err.getvalue() == "" and out.getvalue()
        if out.getvalue().startswith("{"):
            json.loads(out.getvalue(), parse_constant=lambda name: 1 / 0)


def small(line: list[str]) -> list[str]:
    """The line with sizes that are small where it names none, and only counted where it names an odd one."""
    if not line or line[0] not in ("compare", "simulate", "sweep"):
        return line
    given = " ".join(line)
    line = (
        line + ["--seq-len=32"] * ("seq-len" not in given) + ["--heads=2"] * (" heads" not in given.replace("--", " "))
    )
    return line + ["--count-only"] * ("1e15" in given or "9" * 50 in given or "2Gi" in given)


@settings(max_examples=max(250, settings.default.max_examples))
@given(LINES, ODD, st.booleans())
def test_any_command_line_is_answered_or_refused_in_sentences(line: list[str], odd: list[str], as_json: bool) -> None:
    check([*small(line), *odd, *(["--json"] if as_json else [])])


LINES_OF_A_FILE = template().splitlines()
NUMBERS = st.sampled_from(
    ["0", "1", "-1", "1e400", "nan", "inf", "1e15", "1e-6", '"text"', "true", "[]", "{}", "1979-05-27", "9" * 30, "",
     "2"]
)  # fmt: skip


@st.composite
def machine_file(draw: st.DrawFn) -> bytes:
    """The template with some lines dropped, doubled, broken or given another value."""
    lines = list(LINES_OF_A_FILE)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        key, equals, _value = lines[at].partition(" = ")
        kind = draw(st.sampled_from(["value", "value", "value", "drop", "double", "cut", "key"]))
        if kind == "value" and equals:
            lines[at] = f"{key} = {draw(NUMBERS)}"
        elif kind == "drop":
            lines[at] = ""
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "cut":
            lines[at] = lines[at][: len(lines[at]) // 2]
        elif equals:
            lines[at] = f"x{lines[at]}"
    return "\n".join(lines).encode() + draw(st.sampled_from([b"", b"\xff", b"[", b"\x00", b"\n[x]\ny = 1"]))


@settings(max_examples=max(120, settings.default.max_examples))
@given(machine_file(), st.sampled_from([["gpus"], ["simulate", "flash"], ["compare"]]), st.booleans())
def test_any_machine_file_is_read_or_refused_in_sentences(content: bytes, command: list[str], as_json: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_bytes(content)
        name = [str(path)] if command == ["gpus"] else ["--gpu", str(path), "--heads=2", "--seq-len=48"]
        check([*command, *name, *(["--json"] if as_json else [])])
