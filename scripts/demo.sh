#!/usr/bin/env bash
# Set up and run the main job; its tables, pictures and a report are left in demo_output/.
source "$(dirname "$0")/setup.sh" demo
.venv/bin/python scripts/demo.py "$@"
