"""Pictures as files: SVG, PNG, and one HTML page that fetches nothing. The only place that needs the extra `plots`."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from memsim._cli_csv import TableFile
from memsim._plot import Plot
from memsim.errors import MemsimError
from memsim.units import quoted

FORMATS = ("svg", "png", "html")
_PNG_SCALE = 2
# Where things lie, to a hundredth of a pixel; what an attribute says in words keeps its digits.
_SIZES = re.compile(r' (?:transform|d|x|y|x1|x2|y1|y2|width|height)="[^"]*"')
_DIGITS = re.compile(r"(\.\d\d)\d+")


class PlotFile(TableFile[Plot]):
    """The place of a picture, checked when made: its format, what draws it, and that it can be written."""

    option = "out"

    def __init__(self, path: str) -> None:
        self._format = Path(path).suffix.lower().lstrip(".")
        if self._format not in FORMATS:
            raise MemsimError(f"{self.option} is {quoted(path)}: give a file that ends in .svg, .png or .html.")
        _vl_convert()
        super().__init__(path)

    def _fill(self, path: Path, table: Plot) -> None:
        path.write_bytes(picture(table, self._format))


class ValidatePlotFile(PlotFile):
    """The same, as `memsim validate` names it."""

    option = "plot"


def picture(plot: Plot, form: str) -> bytes:
    """The picture as the bytes of a file of this format."""
    draw = _vl_convert()
    spec = plot.spec()
    if form == "png":
        png: bytes = draw.vegalite_to_png(spec, scale=_PNG_SCALE)
        return png
    if form == "svg":
        svg: str = draw.vegalite_to_svg(spec)
        return _SIZES.sub(_rounded, svg).encode()
    return _page(plot, spec, draw.javascript_bundle()).encode()


def _rounded(attribute: re.Match[str]) -> str:
    return _DIGITS.sub(r"\1", attribute[0])


def _page(plot: Plot, spec: dict[str, Any], scripts: str) -> str:
    """One page: the picture, which answers the pointer, and below it its numbers as a table and as JSON.

    Its own policy forbids it to fetch anything.
    """
    spec = {name: value for name, value in spec.items() if name != "title"}
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (plot.rows[0] if plot.rows else ()))
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_cell(value))}</td>' for value in row.values())}</tr>" for row in plot.rows
    )
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in plot.caption)
    notes = "".join(f"<p>{html.escape(line)}</p>" for line in plot.notes)
    return _PAGE.format(
        title=html.escape(plot.title), lines=lines, notes=notes, head=head, body=body, data=_inline(plot.as_dict()),
        spec=_inline(spec), scripts=scripts.replace("</script", "<\\/script"),
    )  # fmt: skip


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _inline(data: object) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; \
style-src 'unsafe-inline'; img-src data: blob:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 sans-serif; color: #1a1a1a; background: #fff; margin: 1.5rem; }}
h1 {{ font-size: 1.25rem; margin: 0 0 .4rem; }}
p {{ margin: 0 0 .2rem; max-width: 48rem; }}
#picture {{ margin: 1rem 0; overflow-x: auto; }}
#numbers {{ overflow-x: auto; }}
summary {{ cursor: pointer; }}
table {{ border-collapse: collapse; font-size: 13px; margin-top: .5rem; }}
th, td {{ text-align: left; padding: .15rem .7rem .15rem 0; border-bottom: 1px solid #ddd; white-space: nowrap; }}
td {{ font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
<h1>{title}</h1>
{lines}
<div id="picture"></div>
{notes}
<details><summary>The numbers</summary><div id="numbers"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>\
</table></div></details>
<script type="application/json" id="data">{data}</script>
<script type="application/json" id="spec">{spec}</script>
<script type="module">{scripts}
vegaEmbed("#picture", JSON.parse(document.getElementById("spec").textContent),
  {{renderer: "svg", actions: {{export: true, source: false, compiled: false, editor: false}}}})
  .then(() => document.body.setAttribute("data-drawn", "true"));
</script>
</body>
</html>
"""


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise MemsimError("plots need vl-convert, which is not installed: pip install 'memsim[plots]'.") from None
    return vl_convert
