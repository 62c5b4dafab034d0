"""What the command line says of bad input: code 2 and one plain sentence per fault."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from memsim import cli

SMALL = ("--heads", "2", "--seq-len", "128", "--head-dim", "64")


def memsim_(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(args)
    return code, out.getvalue(), err.getvalue()


BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("simulat",), ('there is no command "simulat": did you mean simulate?',)),
    (
        ("--gpu", "h200"),
        ('there is no option "--gpu" before a command: give one of gpus, compare, simulate, sweep, tune, validate',),
    ),
    (("simulate",), ("simulate needs an ALGORITHM: choose one of naive, flash, flash1.",)),
    (("simulate", "flsh"), ('there is no algorithm "flsh": choose one of naive, flash, flash1.',)),
    (("simulate", "flash", "naive"), ('"naive" is one word too many: memsim simulate takes one ALGORITHM.',)),
    (("compare", "flash"), ('"flash" is one word too many: memsim compare takes options only.',)),
    (("compare", "--head", "3"), ('there is no option "--head": did you mean --heads?',)),
    (("simulate", "--head", "3", "flash"), ('there is no option "--head": did you mean --heads?',)),
    (("compare", "--zigzag", "x"), ('there is no option "--zigzag": memsim compare --help lists them.',)),
    (("compare", "--grid-order", "zigzag"), ('grid-order is "zigzag"; it must be one of rows-fast, heads-fast,',)),
    (
        ("compare", "--load-path", "tma"),
        ('load-path is "tma"; it must be one of pointer, descriptor, descriptor-ws.',),
    ),
    (
        ("compare", "--load-path", "descriptor", "--gpu", "a100-80gb"),
        ("load-path is descriptor, but sm_80 has no tensor descriptors; take pointer.",),
    ),
    (
        ("simulate", "naive", "--load-path", "descriptor"),
        ("load-path is descriptor, but naive asks for tiles by pointers only; take pointer.",),
    ),
    (
        ("simulate", "flash", "--load-path", "descriptor", "--dtype", "float32"),
        (
            "load-path is descriptor, but float32 rows of 128 are not what tensor descriptors take here: 16-bit "
            "elements in rows of a multiple of 16 bytes; take pointer.",
        ),
    ),
    (("compare", "--heads"), ("--heads needs a value after it.",)),
    (("compare", "--heads", "--causal"), ('--heads needs a value after it, but "--causal" follows.',)),
    (("compare", "--heads", "--"), ('--heads needs a value after it, but "--" follows.',)),
    (("compare", "--set", "--json"), ('--set needs a value after it, but "--json" follows.',)),
    (("simulate", "--", "flash"), ('there is no option "--": memsim simulate --help lists them.',)),
    (("compare", "--heads", "3", "--heads", "3"), ("--heads is given 2 times: give it once.",)),
    (("compare", "--json", "--json"), ("--json is given 2 times: give it once.",)),
    (("compare", "--causal=maybe"), ('--causal is "maybe": it is a flag, give it without a value.',)),
    (("compare", "--lse", "--no-lse"), ("--lse or --no-lse is given 2 times: give it once.",)),
    (("compare", "--heads="), ('heads is "", which is not a finite number: ',)),
    (("compare", "--heads", "1.5"), ('heads is "1.5", which does not come out whole: ',)),
    (("compare", "--seq-len", "-5"), ('seq-len is "-5", which is negative: give zero or more.',)),
    (("compare", "--seq-len", "1e400"), ('seq-len is "1e400", which is too large or too finely written: ',)),
    (("compare", "--seq-len", "8Ti"), ('seq-len is "8Ti", which has an unknown unit "Ti": ',)),
    (("compare", "--heads", "-3"), ('heads is "-3", which is negative: give 1 or more.',)),
    (("compare", "--block-m", "-3"), ('block-m is "-3", which is negative: give 1 or more.',)),
    (("compare", "--clock", "-1"), ('clock is "-1", which is negative: give 1000 or more.',)),
    (("compare", "--hbm-latency", "-1"), ('hbm-latency is "-1", which is negative: give zero or more.',)),
    (("compare", "--set", "sm.pipes.exp_per_clock.float32=-1"), ("which is negative: give more than zero.",)),
    (("compare", "--seq-len", "1e15"), ("seq-len is 1000000000000000; it must lie between 0 and 2^40.",)),
    (("compare", "--kv-heads", "0"), ("kv-heads is 0; it must lie between 1 and 2^40.",)),
    (("compare", "--heads", "0"), ("heads is 0; it must lie between 1 and 2^40.",)),
    (("compare", "--scale", "nan"), ('scale is "nan": give a finite number, such as 0.125 or -1.',)),
    (("compare", "--dtype", "float8"), ('dtype is "float8"; it must be one of float16, bfloat16, float32.',)),
    (("compare", "--heads", "33", "--kv-heads", "2"), ("heads must be a multiple of kv-heads.",)),
    (("compare", "--num-warps", "3"), ("num-warps is 3; it must be a power of two.",)),
    (("compare", "--inputs", "disk"), ('inputs is "disk"; it must be one of hbm, host.',)),
    (("compare", "--gpu", "h2OO"), ('There is no GPU and no file called "h2OO": ',)),
    (("compare", "--gpu", ""), ('There is no GPU and no file called "": ',)),
    (
        ("compare", "--block-m", "8"),
        ("block-m is 8; this GPU's tensor instructions take powers of two of at least 16.",),
    ),
    (("compare", "--hbm-bandwidth", "-2TB/s"), ('hbm-bandwidth is "-2TB/s", which is negative: give 1 or more.',)),
    (("compare", "--l2", "lots"), ('l2 is "lots", which is not a finite number: ',)),
    (
        ("compare", "--gpu", "two-level", "--l2", "50MB"),
        ("l2 is 50000000 B, but two-level has none whose bandwidth and latency it could have: take a GPU",),
    ),
    (("compare", "--l2-state", "hot"), ('l2-state is "hot"; it must be one of cold, warm.',)),
    (("compare", "--set", "sm.count"), ('--set is "sm.count": give KEY=VALUE, such as sm.count=66.',)),
    (("compare", "--set", "sm.cuont=3"), ("sm.cuont is not a field of a GPU: did you mean sm.count?",)),
    (("compare", "--set", "sm.count=3", "--set", "sm.count=4"), ('"sm.count" is set twice: give it once.',)),
    (("compare", "--sms", "3", "--set", "sm.count=4"), ("sms sets sm.count, which is given too: give one of them.",)),
    (
        ("compare", *SMALL, "--block-m", "1Ki", "--block-n", "1Ki"),
        ("of 232448 B: ", "; take a smaller tile or fewer stages."),
    ),
    (("compare", "--seq-len", "128Ki"), ("out of memory: naive needs ", " B of HBM: Q ", " + S ", " + P ")),
    (("gpus", "--template", "h200"), ("--template prints one TOML file: ",)),
    (("gpus", "nope"), ('There is no GPU and no file called "nope": ',)),
    (("sweep",), ("nothing is varied: give at least one axis with its values, such as seq-len=1Ki,2Ki.",)),
    (("sweep", "--vary", "seq-len"), ('--vary is "seq-len": give AXIS=V1,V2, such as seq-len=1Ki,2Ki.',)),
    (("sweep", "--vary", "heads=1", "--jobs", "x"), ('jobs is "x", which is not a finite number: ',)),
    (("sweep", "--vary", "heads=1", "--jobs", "0"), ("jobs is 0; give a whole number from 1 to 1024.",)),
    (("sweep", "--vary", "sram=1KiB:3KiB:x2"), ("which does not come to 3KiB: end it at 2KiB or 4KiB.",)),
    (("sweep", "--from", "nope.db"), ('from is "nope.db", which cannot be used (no such file or directory): give a',)),
    (("sweep", "--vary", "seq-len="), ("seq-len is varied over an empty value: ",)),
    (("sweep", "flash", "--vary", "algorithm=flash,naive"), ("algorithm is varied and given too: give one of them.",)),
    (("sweep", "--vary", "heads=1", "--csv", ""), ('csv is "", which is no file: give the path of a file to write.',)),
]


@pytest.mark.parametrize(("args", "parts"), BAD, ids=[" ".join(args) or "-" for args, _ in BAD])
def test_bad_input_is_one_sentence_and_code_2(args: tuple[str, ...], parts: tuple[str, ...]) -> None:
    code, out, err = memsim_(*args)
    assert (code, out) == (2, "")
    assert err.startswith("memsim: ") and err.count("\n") == 1 and err[-2] in ".?"
    for part in parts:
        assert part in err


def test_faults_of_a_command_are_named_together(tmp_path: Path) -> None:
    code, _, err = memsim_(
        "simulate", "flush", "--haeds", "3", "--heads", "0", "--seq-len", "x", "--dtype", "int8", "--block-m", "0",
        "--scale", "inf", "--inputs", "disk", "--set", "sm.cuont=3", "--sms", "many", "--causal=maybe", "--json=2",
        "--num-stages",
    )  # fmt: skip
    assert code == 2
    lines = err.splitlines()
    for fragment in (
        "--num-stages needs", '"--haeds"', '"flush"', "heads is 0", "seq-len is", "dtype is", "block-m is 0",
        "scale is", "inputs is", "sm.cuont is not", "sms is", '--causal is "maybe"', '--json is "2"',
    ):  # fmt: skip
        assert sum(fragment in line for line in lines) == 1, fragment
    assert len(lines) == 13
    code, _, err = memsim_(
        "sweep", "--vary", "heads=1,x", "--vary", "nonsense=1", "--vary", "heads=2", "--dtype", "int8",
        "--csv", str(tmp_path / "no" / "x.csv"),
    )  # fmt: skip
    assert code == 2 and len(err.splitlines()) == 5


def test_a_directory_is_not_a_gpu_nor_a_csv_file(tmp_path: Path) -> None:
    code, _, err = memsim_("compare", "--gpu", str(tmp_path))
    assert code == 2 and "is a directory" in err
    code, _, err = memsim_("sweep", "--vary", "heads=1", "--csv", str(tmp_path))
    assert code == 2 and "is no file" in err


def test_sentences_stay_on_one_line() -> None:
    code, _, err = memsim_("compare", "--gpu", "a\nb\x1b[31m", "--dtype", "x\ny", "--heads", "\udcff")
    assert code == 2 and len(err.splitlines()) == 3 and "\x1b" not in err


def test_what_every_point_of_a_sweep_shares_is_a_fault_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sweep", "--heads", "33", "--kv-heads", "2", "--vary", "block-m=16,32", "--count-only"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "multiple of kv-heads" in err


def test_a_length_that_says_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--seq-len", "64", "--seq-len-q", "5", "--seq-len-k", "6"]
    assert cli.run(["simulate", "flash", *lengths]) == 2
    assert "seq-len is given beside seq-len-q and seq-len-k" in capsys.readouterr().err
    assert cli.run(["simulate", "flash", *lengths[:4], "--count-only"]) == 0


def test_a_full_disk_does_not_take_the_rows_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "--vary", "seq-len=64,128", "--heads", "1", "--count-only", "--csv", "/dev/full", "--json"]
    assert cli.run(command) == 2
    out, err = capsys.readouterr()
    assert len(json.loads(out)["rows"]) == 2 and err.strip()
