#!/usr/bin/env bash
# Set up (2.2 GB, in .venv or VENV) and build the documentation into docs/_build/html; a warning, such as a broken reference,
# is an error.
source "$(dirname "$0")/setup.sh" docs "2.2 GB"
"$VENV/bin/python" -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html "$@"
echo "open docs/_build/html/index.html"
