#!/usr/bin/env bash
# Set up (3.1 GB, in .venv or VENV) and run the fast test suite, two tests at a time; arguments go to pytest.
source "$(dirname "$0")/setup.sh" dev "3.1 GB"
"$VENV/bin/python" -m pytest -n 2 --dist worksteal -m "not slow and not gate and not gpu and not notebook" "$@"
