# Sourced by the other scripts: makes an environment beside setup.cfg, .venv or what VENV says, and installs tfgc there with
# the given extra.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
if [ ! -x "$venv/bin/python" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tfgc needs Python 3.11 or later; set PYTHON" >&2; exit 1; }
  "$python" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
export TF_CPP_MIN_LOG_LEVEL=2
