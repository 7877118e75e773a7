"""How Sphinx builds these pages; scripts/docs.sh calls it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tfgc
from tfgc import strategies, zoo

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
    families = {}
    for network in sorted(zoo.catalogue(), key=lambda network: network.family):
        families.setdefault(network.family, []).append(network.name)
    del families[""]  # those of keras.applications
    for mark, package, modules in (
        ("<!-- strategies -->", "strategies", {name: ["plan"] for name in strategies.available()}),
        ("<!-- networks -->", "zoo", families),
    ):
        sections = (
            f"### {module}\n\n```{{eval-rst}}\n.. automodule:: tfgc.{package}.{module}\n"
            f"   :members: {', '.join(members)}\n```"
            for module, members in modules.items()
        )
        source[0] = source[0].replace(mark, "\n\n".join(sections))
