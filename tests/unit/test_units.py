"""Do quantities read and print as documented, and is everything else refused in one sentence?"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsim.errors import MemsimError
from memsim.units import (
    LARGEST,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_hertz,
    parse_number,
    parse_seconds,
    quoted,
)

PARSERS = (parse_bytes, parse_count, parse_bandwidth, parse_seconds, parse_hertz, parse_number)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("98304", 98304),
        ("98304B", 98304),
        ("96KiB", 96 * 1024),
        ("96 KiB", 96 * 1024),
        (" 96KiB ", 96 * 1024),
        ("1.5MiB", 1_572_864),
        ("2GiB", 2 * 2**30),
        ("1TiB", 2**40),
        ("164KB", 164_000),
        ("33.6MB", 33_600_000),
        ("150.1GB", 150_100_000_000),
        ("1TB", 10**12),
        ("150.1e9", 150_100_000_000),
        (".5KiB", 512),
        (str(LARGEST), LARGEST),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    value = parse_bytes(text)
    assert value == size_bytes
    assert isinstance(value, int)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_count, "128Ki", 131_072),
        (parse_count, "2Mi", 2_097_152),
        (parse_count, "132", 132),
        (parse_bandwidth, "2TB/s", 2e12),
        (parse_bandwidth, "100GiB/s", 100 * 2**30),
        (parse_bandwidth, "936e9", 936e9),
        (parse_bandwidth, "4.8 TB/s", 4.8e12),
        (parse_seconds, "600ns", 6e-7),
        (parse_seconds, "3.8us", 3.8e-6),
        (parse_seconds, "3.8µs", 3.8e-6),
        (parse_seconds, "3.8μs", 3.8e-6),
        (parse_seconds, "5ps", 5e-12),
        (parse_seconds, "2ms", 2e-3),
        (parse_seconds, "0.5s", 0.5),
        (parse_seconds, "6e-7", 6e-7),
        (parse_hertz, "1.7GHz", 1.7e9),
        (parse_hertz, "1410MHz", 1.41e9),
        (parse_hertz, "2kHz", 2e3),
        (parse_hertz, "1.7e9", 1.7e9),
        (parse_number, "673.43", 673.43),
    ],
)
def test_other_quantities(parse, text, value) -> None:  # type: ignore[no-untyped-def]
    assert parse(text) == value


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "-0.1", "+-1", "nan", "NaN", "inf", "-inf", "1e400", "1e999999999", "1e+0000001000000"]
)
@pytest.mark.parametrize("parse", PARSERS)
def test_no_quantity_is_negative_absent_or_without_end(parse, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MemsimError) as caught:
        parse(text, "--thing")
    (sentence,) = caught.value.faults
    assert sentence.startswith("--thing is ")
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    "text", ["96K", "96k", "96kb", "96kB", "96KIB", "96kib", "96Ki", "96b", "9_6", "9,6", "0x60", "٩"]
)
def test_a_size_with_another_spelling_is_told_the_right_ones(text: str) -> None:
    with pytest.raises(
        MemsimError, match=r"KiB, MiB, GiB or TiB \(steps of 1024\) or KB, MB, GB or TB \(steps of 1000\)"
    ):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bandwidth, "2TB"),
        (parse_bandwidth, "2Tb/s"),
        (parse_bandwidth, "2 TB / s"),
        (parse_seconds, "5m"),
        (parse_seconds, "5S"),
        (parse_hertz, "1.7ghz"),
        (parse_hertz, "1.7G"),
        (parse_count, "128K"),
        (parse_number, "128B"),
    ],
)
def test_units_of_another_kind_or_spelling_are_refused(parse, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MemsimError, match="which has an unknown unit"):
        parse(text)


@pytest.mark.parametrize("text", ["1.5", "0.3KiB", "1e-3", "1e-99"])
def test_a_size_comes_out_whole(text: str) -> None:
    with pytest.raises(MemsimError, match="does not come out whole"):
        parse_bytes(text)


def test_a_size_beyond_64_bits_is_refused() -> None:
    with pytest.raises(MemsimError, match="too large"):
        parse_bytes(str(LARGEST + 1))
    with pytest.raises(MemsimError, match="too large"):
        parse_bytes("9999999TiB")


@given(st.text(max_size=80))
def test_any_text_is_a_quantity_or_one_sentence(text: str) -> None:
    for parse in PARSERS:
        try:
            assert 0 <= parse(text) <= LARGEST
        except MemsimError as error:
            (sentence,) = error.faults
            assert sentence.isprintable()
            assert len(sentence) < 400


@given(st.integers(0, LARGEST))
def test_a_plain_number_of_bytes_is_itself(size_bytes: int) -> None:
    assert parse_bytes(str(size_bytes)) == size_bytes


@given(st.integers(0, 10**15))
def test_a_printed_size_reads_back_to_three_digits(size_bytes: int) -> None:
    assert math.isclose(parse_bytes(format_bytes(size_bytes).replace(",", "")), size_bytes, rel_tol=0.005)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(999), "999 B"),
        (format_bytes(1000), "1.00 KB"),
        (format_bytes(33_554_432), "33.6 MB"),
        (format_bytes(999_999), "1.00 MB"),
        (format_bytes(550e9), "550 GB"),
        (format_bytes(12_345e12), "12,345 TB"),
        (format_rate(4.8e12), "4.80 TB/s"),
        (format_rate(989e12, "FLOP/s"), "989 TFLOP/s"),
        (format_count(131_072), "131,072"),
        (format_count(68_719_476_736), "68.7 G"),
        (format_count(68_719_476_736, "FLOP"), "68.7 GFLOP"),
        (format_count(2.5), "2.50"),
        (format_seconds(0), "0 s"),
        (format_seconds(3.8e-6), "3.80 µs"),
        (format_seconds(1.2345e-3), "1.23 ms"),
        (format_seconds(5e-12), "5.00 ps"),
        (format_seconds(0.99999), "1.00 s"),
        (format_seconds(12.34), "12.3 s"),
    ],
)
def test_formats(printed: str, expected: str) -> None:
    assert printed == expected


def test_quoted_is_short_and_printable() -> None:
    assert quoted("a\x1b[31m\nb") == '"a?[31m?b"'
    assert len(quoted("x" * 10_000)) == 62
