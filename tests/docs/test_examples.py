"""Do the Python examples of the documentation print what they show?"""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from .pages import DOCS, PAGES, examples

WITH_EXAMPLES = [page for page in PAGES if examples(page)]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_examples_of_a_page(page: Path) -> None:
    assert run(page) == 0


def test_an_example_that_prints_something_else_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> 1 + 1\n3\n\n```\n", encoding="utf-8")
    assert run(page) == 1


def test_every_prompt_is_in_an_example() -> None:
    prompts = {page: page.read_text(encoding="utf-8").count("\n>>> ") for page in PAGES}
    run_here = {page: sum(f"\n{text}".count("\n>>> ") for _, text in examples(page)) for page in PAGES}
    assert prompts == run_here
    assert sum(prompts.values()) > 20


def run(page: Path) -> int:
    """Run the examples of a page, one after the other in the same names, and return how many fail."""
    names: dict[str, object] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner()
    for line, text in examples(page):
        test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
        runner.run(test, clear_globs=False)
        names = test.globs
    return runner.summarize(verbose=False).failed
