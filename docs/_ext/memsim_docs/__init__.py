"""Sphinx directives and roles of memsim's documentation.

A page's numbers come from commands that the build runs:

- `{run}` runs a command and shows it with what it printed; `{file}` is a file that the page's reader makes.
- The role `out` quotes a number: ``{out}`1.35 GB <HBM total @ naive>` `` must stand in such a line of the last output
  (`<name: …>`: of the command of that name). The role `calc` computes one: ``{calc}`2.4× <both.ratios.hbm_bytes>` ``.
  The role `given` marks one that is chosen or defined and not an output.
- Any other number in the prose of tutorial, how-to pages and concepts is an error.

`{section}` shows a section of another file, `{picture}` one of docs/pictures, if it is there. A line
`<!-- reference: NAME -->` becomes what memsim_docs.reference makes of the package.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from memsim_docs import quotes, reference
from memsim_docs.runs import ROOT, Page, PageFault

logger = logging.getLogger(__name__)
NO_BREAK = "\N{NO-BREAK SPACE}"
CHECKED = ("tutorial/", "howto/", "concepts/")
"""The pages whose every number is checked."""
EXEMPT = (nodes.literal, nodes.literal_block, nodes.doctest_block, nodes.comment, nodes.raw, nodes.image)


class _Directive(SphinxDirective):
    def page(self) -> Page:
        return _page(self.env)

    def fault(self, fault: Exception) -> list[nodes.Node]:
        logger.warning("%s", fault, location=self.get_location())
        return []


class Run(_Directive):
    """A command, run, and what it printed."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "name": directives.unchanged,
        "exit": directives.nonnegative_int,
        "from": directives.unchanged,
        "until": directives.unchanged,
        "hide-output": directives.flag,
        "hidden": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        command = " ".join(self.arguments[0].split())
        try:
            output = self.page().run(command, self.options.get("name"), self.options.get("exit", 0))
            shown = _cut(output.out + output.err, self.options.get("from"), self.options.get("until"))
        except PageFault as fault:
            return self.fault(fault)
        if "hidden" in self.options:
            return []
        typed = _typed(command)
        asked = nodes.literal_block(typed, typed, language="text", classes=["command"])
        refused = [] if output.out else ["refused"]
        if "hide-output" in self.options or not shown.strip():
            return [asked]
        return [asked, nodes.literal_block(shown, shown, language="text", classes=["output", *refused])]


class File(_Directive):
    """A file that the reader makes."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content) + "\n"
        self.page().write(self.arguments[0], text)
        language = {"toml": "toml", "py": "python"}.get(self.arguments[0].rpartition(".")[2], "text")
        return [nodes.literal_block(text, text, language=language)]


class Section(_Directive):
    """The text under one heading of a file in docs/, up to the next."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        file, _, heading = self.arguments[0].partition(" ")
        path = ROOT / "docs" / file
        self.env.note_dependency(str(path))
        found = re.search(
            rf"^#+ {re.escape(heading.strip())}\n(.*?)(?=^#+ |\Z)", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        if found is None:
            return self.fault(PageFault(f"{file} has no heading {heading.strip()!r}."))
        up = "../" * self.env.docname.count("/")
        text = re.sub(r"\]\((?!https?:|#)", rf"]({up}", found[1])
        box = nodes.container(classes=["from-repository"])
        self.state.nested_parse(StringList(text.splitlines(), str(path)), 0, box)
        return [box]


class Picture(_Directive):
    """A picture of docs/pictures with its caption; nothing as long as it has not been made."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = ROOT / "docs" / "pictures" / self.arguments[0]
        if not path.is_file():
            logger.info("no picture %s yet, for %s", self.arguments[0], self.env.docname)
            return []
        caption = " ".join(self.content)
        figure = nodes.figure("", nodes.image(uri=f"/pictures/{self.arguments[0]}", alt=caption))
        inlines, messages = self.state.inline_text(caption, self.lineno)
        figure += nodes.caption(caption, "", *inlines)
        return [figure, *messages]


class Given(SphinxRole):
    """A number that is chosen or defined."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        said, against = quotes.split(self.text)
        self.env.note_reread()
        page, location, last = _page(self.env), self.get_location(), _page(self.env).last

        def check() -> None:
            try:
                self.check(page, last, said, against)
            except PageFault as fault:
                logger.warning("%s", fault, location=location)

        page.later.append(check)
        return [nodes.inline(said, said.replace(" ", NO_BREAK), classes=["quoted"])], []

    def check(self, page: Page, last: str | None, said: str, against: str | None) -> None:
        """Raise unless the number holds; `last` is the command before it."""
        if against is not None:
            raise PageFault(f"{said!r} is given: it is held against nothing.")


class Printed(Given):
    """A number that a command printed."""

    def check(self, page: Page, last: str | None, said: str, against: str | None) -> None:
        if not against:
            raise PageFault(f"{said!r} does not say in which line it stands: `{said} <words of the line>`.")
        named = re.match(r"([a-z_]+): ", against)
        output = page.output(named[1] if named else last)
        quotes.check_printed(said, against[named.end() :] if named else against, output.out + output.err)


class Computed(Given):
    """A number that follows from what commands printed."""

    def check(self, page: Page, last: str | None, said: str, against: str | None) -> None:
        if not against:
            raise PageFault(f"{said!r} does not say what it follows from: `{said} <expression>`.")
        quotes.check_computed(said, against, page.data)


def _page(env: Any) -> Page:
    """The page that is being read."""
    if "memsim_page" not in env.temp_data:
        env.temp_data["memsim_page"] = Page()
    page: Page = env.temp_data["memsim_page"]
    return page


def _typed(command: str) -> str:
    """The command as it is typed, on several lines if it is long."""
    # An option and its value stay on one line.
    kept = re.sub(r"(--\S+) (?!-)", rf"\1{NO_BREAK}", f"$ {command}")
    lines = textwrap.wrap(kept, 84, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace(NO_BREAK, " ")


def _cut(text: str, start: str | None, end: str | None) -> str:
    lines = text.rstrip().splitlines()
    for said in (start, end):
        if said is not None and not any(said in line for line in lines):
            raise PageFault(f"nothing that was printed has {said!r}.")
    first = next(i for i, line in enumerate(lines) if start in line) if start else 0
    last = next(i for i, line in enumerate(lines) if i > first and end in line) if end else len(lines)
    kept = lines[first:last]
    return "\n".join([*(["…"] if first else []), *kept, *(["…"] if last < len(lines) else [])])


def _check_prose(app: Sphinx, doctree: nodes.document) -> None:
    """Every number of a checked page stands in a quote, in code, or in a section of another file."""
    page = _page(app.env)
    for check in page.later:
        check()
    page.close()
    if not app.env.docname.startswith(CHECKED):
        return
    for text in doctree.findall(nodes.Text):
        around = quotes.unquoted(text)
        if around is None or _is_exempt(text):
            continue
        logger.warning("a number is held against nothing: %s", around, location=text.parent)


def _is_exempt(node: nodes.Node | None) -> bool:
    while node is not None:
        if isinstance(node, EXEMPT):
            return True
        if isinstance(node, nodes.Element) and {"quoted", "from-repository"} & set(node.get("classes", ())):
            return True
        node = node.parent
    return False


def _fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    def made(found: re.Match[str]) -> str:
        try:
            return reference.markdown(found[1])
        except PageFault as fault:
            logger.warning("%s", fault, location=docname)
            return ""

    source[0] = _with_one_title(source[0])
    source[0] = re.sub(r"^<!-- reference: (\S+) -->$", made, source[0], flags=re.MULTILINE)


def _with_one_title(text: str) -> str:
    """A page that has several titles, as a file of the repository may: those after the first become sections."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    if sum(len(re.findall(r"^# ", part, flags=re.MULTILINE)) for part in parts[::2]) < 2:
        return text
    first, end, rest = text.partition("\n")
    parts = re.split(r"(^```.*?^```$)", rest, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"^#", "##", part, flags=re.MULTILINE) for part in parts[::2]]
    return first + end + "".join(parts)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add all of it to a build."""
    for name, directive in {"run": Run, "file": File, "section": Section, "picture": Picture}.items():
        app.add_directive(name, directive)
    for name, role in {"out": Printed(), "calc": Computed(), "given": Given()}.items():
        app.add_role(name, role)
    app.connect("doctree-read", _check_prose)
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
