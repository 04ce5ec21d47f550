"""The site: ``make docs`` builds it into ``out/site``, without a network."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext import autosummary

import gp_ensembles

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]

project = "gp_ensembles"
author = "The gp_ensembles developers"
copyright = author  # noqa: A001 (what Sphinx reads)
version = release = gp_ensembles.__version__

extensions = [
    "cells",
    "defaults",
    "examples",
    "gallery",
    "imports",
    "inherited",
    "links",
    "mathml",
    "measured",
    "properties",
    "reachable",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
html_math_renderer = "mathml"
nitpicky = False
highlight_language = "text"  # commands and output are not Python
exclude_patterns = ["README.md"]


myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
nb_execution_mode = "off"  # the gallery has run them
nb_merge_streams = True  # what several prints say is one box
myst_heading_anchors = 3

# a first sentence does not end there
autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.", "Eqs.")
autosummary_generate = True
autosummary_imported_members = False
autosummary_ignore_module_all = False
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # as the source says them
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False

templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme = "furo"
html_title = "gp_ensembles"
html_show_sphinx = False
# no buttons to view or edit the source, which has no host
html_theme_options = {"top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """What Sphinx calls.

    Scikit-learn's own requests for metadata, on each of its estimators, are left out, and so are the fields of named
    tuples, which are listed with the class: Python says of them no more than their number.
    """

    def is_skipped(
        app: Sphinx,
        what: str,
        name: str,
        member: object,
        skip: bool,
        options: object,
    ) -> bool | None:
        is_request = name.startswith("set_") and name.endswith("_request")
        return (
            True if is_request or type(member).__name__ == "_tuplegetter" else None
        )

    def bring_llms(app: Sphinx, error: Exception | None) -> None:
        """``llms.txt`` with links to the pages of the site."""
        text = (ROOT / "llms.txt").read_text(encoding="utf-8")
        pages = re.sub(r"\]\(docs/([\w/]+)\.md\)", r"](\1.html)", text)
        (Path(app.outdir) / "llms.txt").write_text(pages, encoding="utf-8")

    app.connect("autodoc-skip-member", is_skipped)
    app.connect("build-finished", bring_llms)
