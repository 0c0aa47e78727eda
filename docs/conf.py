"""Sphinx configuration: `sphinx-build -W -b html docs docs/_build/html`."""

from importlib.metadata import version as installed_version

project = "manyview"
author = "The manyview maintainers"
copyright = "2026, the manyview maintainers"
version = release = installed_version("manyview")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
default_role = "code"
smartquotes = False  # `--dry-run` keeps its two dashes

html_theme = "furo"
html_title = "manyview"
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
