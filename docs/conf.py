"""How Sphinx builds these pages; scripts/docs.sh calls it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tfgc
from tfgc.zoo._catalogue import families

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
    app.connect("source-read", list_folders)


def list_folders(app, name, source):
    """Write a section for each strategy and family of networks into `api.md`: a new file there needs no edit here."""
    for mark, package, modules, members in (
        ("<!-- strategies -->", "strategies", tfgc.strategies.available(), " plan"),
        ("<!-- networks -->", "zoo", families(), ""),
    ):
        sections = (
            f"### {module}\n\n```{{eval-rst}}\n.. automodule:: tfgc.{package}.{module}\n   :members:{members}\n```"
            for module in modules
        )
        source[0] = source[0].replace(mark, "\n\n".join(sections))
