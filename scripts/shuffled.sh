#!/usr/bin/env bash
# Run the fast suite in N shuffled orders (default 10), each in a fresh clone with its own environment (3.1 GB, deleted after
# the run), or all with the one in VENV, in which tfgc is then that of the last clone:
#   scripts/shuffled.sh [N [FIRST_SEED]]
# Prints a line for each run: seed, counts of passed and failed tests, time, and below it the failed tests. Keeps the output.
set -euo pipefail
runs=${1:-10} first=${2:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
[[ ${VENV:-/} = /* ]] || export VENV=$PWD/$VENV
echo "installing TensorFlow, Keras and what the extra 'dev' of tfgc needs into ${VENV:-each clone in $folder}: about 3.1 GB" >&2
failures=0
for ((seed = first; seed < first + runs; seed++)); do
  clone=$folder/$seed log=$folder/$seed.log
  git clone --quiet "$root" "$clone"
  begin=$SECONDS
  "$clone/scripts/test.sh" -p randomly -p "no:cacheprovider" --randomly-seed="$seed" --randomly-dont-reset-seed \
    >"$log" 2>&1 || failures=$((failures + 1))
  # If pytest did not finish: the last line of the output.
  summary=$(grep -E '^=+ .*(passed|failed|error).* =+$' "$log" | tail -n 1 | tr -d = || true)
  echo "seed $seed:${summary:- $(tail -n 1 "$log")}, $((SECONDS - begin)) s with set-up"
  grep -E '^(FAILED|ERROR) ' "$log" || true
  rm -rf "$clone"
done
echo "$((runs - failures)) of $runs runs passed; their output is in $folder"
[ "$failures" = 0 ]
