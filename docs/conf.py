"""Sphinx configuration of the documentation; `make docs` builds it. Nothing is downloaded, neither here nor by the pages."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
sys.path.insert(0, str(ROOT / "src"))

project = "Fledge"
author = "the Fledge authors"
copyright = "the Fledge authors, MIT licence"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated_pages",
]
exclude_patterns = ["_build", "_ext"]

# Markdown
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # [text](page.md#heading) is checked down to ####
highlight_language = "commands"  # of blocks without a language
smartquotes = False  # -- is an option, not a dash

# API pages: docstrings use single backticks for code
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 90

# looks
html_theme = "furo"
html_title = "Fledge"
html_static_path = ["_static"]
html_css_files = ["fledge.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = (
    ".linenos, .gp, .c"  # copy commands without the comments behind them
)
