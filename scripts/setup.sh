# Sourced by the other scripts, as `source setup.sh EXTRA SIZE [FOLDER]`: installs tfgc with an extra into the environment that
# VENV names, FOLDER (.venv) in this clone by default, and says before that what it installs and how large it gets.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$root/${3:-.venv}}
[[ $VENV = /* ]] || VENV=$PWD/$VENV
export VENV TF_CPP_MIN_LOG_LEVEL=2
cd "$root"
if [ ! -x "$VENV/bin/python" ]; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tfgc needs Python 3.11 or later; set PYTHON" >&2; exit 1; }
  echo "installing TensorFlow, Keras and what the extra '$1' of tfgc needs into $VENV: about $2" >&2
  "$python" -m venv "$VENV"
else
  echo "installing what is missing of the extra '$1' of tfgc into $VENV: about $2 in all" >&2
fi
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
