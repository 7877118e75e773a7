#!/usr/bin/env bash
# Set up (8.6 GB, with jax's CUDA plugin, in .venv-compile or VENV) and run the tests that compile for GPUs; arguments go to
# pytest.
source "$(dirname "$0")/setup.sh" dev,compile "8.6 GB" .venv-compile
"$VENV/bin/python" -m pytest -m compile "$@"
