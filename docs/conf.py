"""How Sphinx builds these pages; scripts/docs.sh calls it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tfgc

project = "tfgc"
author = "the tfgc contributors"
version = release = tfgc.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"tfgc {release}"
html_copy_source = False
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# A single backtick is code in the docstrings, as in Markdown.
default_role = "code"
napoleon_use_ivar = True
napoleon_use_rtype = False
# Options are written with two hyphens.
smartquotes = False


def setup(app):
    app.connect("source-read", list_strategies)


def list_strategies(app, name, source):
    """Put a section for each strategy where `api.md` says so: a new one is one file and no other edit."""
    sections = []
    for strategy in tfgc.strategies.available():
        module = f"tfgc.strategies.{strategy}"
        sections.append(f"### {strategy}\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members: plan\n```")
    source[0] = source[0].replace("<!-- strategies -->", "\n\n".join(sections))
