#!/usr/bin/env bash
# Set up (2.5 GB, in .venv or VENV) and run the main job; its tables, pictures and a report are left in demo_output/.
source "$(dirname "$0")/setup.sh" demo "2.5 GB"
"$VENV/bin/python" scripts/demo.py "$@"
