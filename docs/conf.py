"""How Sphinx builds the documentation: `make docs`."""

import os
import sys
from pathlib import Path

from memsim import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# Nothing is taken from what earlier runs kept.
os.environ["MEMSIM_CACHE"] = os.devnull

project = "memsim"
author = "memsim authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "memsim_docs"]
exclude_patterns = ["_ext", "pictures"]
html_theme = "furo"
html_title = "memsim"
html_static_path = ["_static"]
html_css_files = ["memsim.css"]
html_copy_source = False
html_show_copyright = False
highlight_language = "text"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings have `names` in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["torch", "triton"]
