#!/usr/bin/env bash
# The oldest torch that is promised and the newest (R11), each in an environment of its own: once a release, not part of CI.
#
#     bash tests/floor.sh [oldest|newest]      (needs about 5 GB; PYTHON_OLDEST names an interpreter that torch 2.0.1 has
#                                               wheels for: 3.8 to 3.11)
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

try() { # name, interpreter, requirements of torch, what pytest takes besides
  local name=$1 python=$2 torch=$3
  shift 3
  printf '\n== %s: %s\n' "$name" "$torch"
  "$python" -m venv "$work/$name"
  # shellcheck disable=SC2086
  "$work/$name/bin/python" -m pip install --quiet $torch
  # torch stays as it is: a requirement that would need another one fails here
  "$work/$name/bin/python" -m pip list --format=freeze | grep -E '^(torch|numpy)==' >"$work/$name.txt"
  "$work/$name/bin/python" -m pip install --quiet --constraint "$work/$name.txt" . \
    'scikit-learn>=1.0' 'matplotlib>=3.5' 'networkx>=2.6' 'pytest>=7' 'pytest-timeout>=2.1' 'hypothesis>=6'
  "$work/$name/bin/python" -m pip list --format=freeze |
    grep -E '^(torch|lightning-utilities|tensorboard|rich|torchmetrics|typing_extensions|numpy)=='
  OMP_NUM_THREADS=1 MPLBACKEND=Agg "$work/$name/bin/python" -m pytest "$@"
}

which=${1:-all}
if [ "$which" = all ] || [ "$which" = oldest ]; then
  # numpy 2 came after it; Lightning, the builds and the tools of the house are tried with the torch of CI
  try oldest "${PYTHON_OLDEST:-python3.11}" 'torch==2.0.1 numpy<2' \
    tests/engine tests/api tests/distributed tests/test_old_scripts.py tests/test_surface.py tests/test_smoke.py
fi
if [ "$which" = all ] || [ "$which" = newest ]; then
  # the newest of the other dependencies come with it
  try newest "${PYTHON_NEWEST:-python3}" torch --ignore=tests/test_packaging.py
fi
