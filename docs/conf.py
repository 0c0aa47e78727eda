"""Sphinx configuration."""

from importlib.metadata import version as installed_version

project = "manyview"
author = "The manyview maintainers"
copyright = "2026, the manyview maintainers"
version = release = installed_version("manyview")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
html_theme = "furo"
html_title = "manyview"
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
default_role = "code"
nitpicky = False
