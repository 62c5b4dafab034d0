"""A verification as a table, and what disagrees in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from memsim._report_format import NONE, Figures, Paragraph
from memsim_kernels._verify_cases import AGREES, CHECKS, DIFFERS, ESTIMATE, NOT_RUN, Outcome
from memsim_kernels.verify import Verification

MOST_DETAILS = 20


def verification_report(found: Verification) -> RenderableType:
    """A table a check; then what differs, what was not run and why, and how much agrees."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    return Group(
        Text("Verification of the real kernels", style="bold"),
        Paragraph(f"simulated and compiled for {found.gpu}; {versions}"),
        *_tables(found),
        *_sentences(found),
        "",
        Paragraph(_sum(found)),
    )


def _tables(found: Verification) -> Iterator[RenderableType]:
    for check, about in CHECKS.items():
        outcomes = [outcome for outcome in found.outcomes if outcome.check == check]
        if not outcomes:
            continue
        rows = [
            (found.cases[outcome.case].label, (outcome.status, *_COLUMNS[check][1](outcome)))
            if outcome.figures
            else (found.cases[outcome.case].label, (outcome.status, *(NONE for _ in _COLUMNS[check][0])))
            for outcome in outcomes
        ]
        yield ""
        yield Text(check, style="bold").append(f": {about}", style="not bold")
        yield Figures(("", *_COLUMNS[check][0]), rows)


def _numbers(outcome: Outcome) -> tuple[str, ...]:
    f = outcome.figures
    return _short(f["o_error"]), _short(f["o_allowed"]), _short(f["o_from_simulator"])


def _accesses(outcome: Outcome) -> tuple[str, ...]:
    f = outcome.figures
    part = f"{f['blocks']:,} of {f['of_blocks']:,}" if f["blocks"] != f["of_blocks"] else f"all {f['blocks']:,}"
    return f"{f['records']:,}", part


def _resources(outcome: Outcome) -> tuple[str, ...]:
    kernels = outcome.figures.values()
    return tuple(
        " / ".join(f"{kernel[name]['compiled']:,}" for kernel in kernels)
        for name in ("sram_bytes", "blocks_per_sm", "registers")
    )


def _counters(outcome: Outcome) -> tuple[str, ...]:
    return tuple(
        " / ".join(
            f"{kernel[name]['measured'] - kernel[name]['simulated']:+,.0f}" if name in kernel else NONE
            for kernel in outcome.figures.values()
        )
        for name in ("sram_fill_bytes", "sram_store_bytes", "hbm_read_bytes")
    )


_COLUMNS: Mapping[str, tuple[tuple[str, ...], Callable[[Outcome], tuple[str, ...]]]] = {
    "numbers": (("off by", "allowed", "from sim."), _numbers),
    "accesses": (("records", "blocks"), _accesses),
    "resources": (("SRAM", "blocks/SM", "registers"), _resources),
    "gpu-numbers": (("off by", "allowed", "from sim."), _numbers),
    "gpu-counters": (("fills off", "stores off", "HBM reads off"), _counters),
}
"""The headings of each check's table, and its cells."""


def _short(value: float | None) -> str:
    return NONE if value is None else f"{value:.1e}"


def _sentences(found: Verification) -> Iterator[RenderableType]:
    for status, heading in ((DIFFERS, "Disagrees"), (ESTIMATE, "Only estimated"), (NOT_RUN, "Not run")):
        outcomes = [outcome for outcome in found.outcomes if outcome.status == status]
        if not outcomes:
            continue
        yield ""
        yield Text(heading, style="bold")
        for (check, detail), cases in _grouped(outcomes)[:MOST_DETAILS]:
            names = str(found.cases[cases[0]]) + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
            yield Paragraph(f"{check} of {names}: {detail}")
        if len(_grouped(outcomes)) > MOST_DETAILS:
            yield Paragraph(f"and {len(_grouped(outcomes)) - MOST_DETAILS} more; --json has them all")
    if found.skipped:
        yield ""
        yield Text("Left out", style="bold")
        for check, why in found.skipped.items():
            yield Paragraph(f"{check} ({CHECKS[check]}): {why}")


def _grouped(outcomes: list[Outcome]) -> list[tuple[tuple[str, str], list[int]]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.check, outcome.detail), []).append(outcome.case)
    return list(groups.items())


def _sum(found: Verification) -> str:
    words = {AGREES: "agree", DIFFERS: "differ", ESTIMATE: "only estimated", NOT_RUN: "not run"}
    counts = {word: found.count(status) for status, word in words.items()}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count or word in ("agree", "differ"))
    return f"{len(found.outcomes)} checks of {len(found.cases)} cases: {said}."
