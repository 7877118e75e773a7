#!/usr/bin/env bash
# Set up .venv-compile, with jax's CUDA plugin (5.5 GB), and run the tests that compile for GPUs; arguments go to pytest.
VENV=.venv-compile
source "$(dirname "$0")/setup.sh" dev,compile
"$VENV/bin/python" -m pytest -m compile "$@"
