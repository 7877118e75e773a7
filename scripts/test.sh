#!/usr/bin/env bash
# Set up and run the fast test suite; arguments go to pytest.
source "$(dirname "$0")/setup.sh" dev
.venv/bin/python -m pytest -m "not slow and not gpu" "$@"
