"""The site: ``make docs`` builds it into ``out/site``, without a network."""

import sys
from pathlib import Path

import gp_ensembles

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]

project = "gp_ensembles"
author = "The gp_ensembles developers"
copyright = author
version = release = gp_ensembles.__version__

extensions = [
    "house",
    "mathml",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
html_math_renderer = "mathml"
nitpicky = False
exclude_patterns = ["README.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_imported_members = False
autosummary_ignore_module_all = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
_ROUTING = [f"set_{method}_request" for method in ("fit", "partial_fit", "predict", "score", "transform")]
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": ", ".join(_ROUTING),  # scikit-learn's own, on each of its estimators
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False

templates_path = ["templates"]
html_theme = "furo"
html_title = "gp_ensembles"
html_static_path = ["static"]
html_show_sphinx = False
