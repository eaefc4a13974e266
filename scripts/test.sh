#!/usr/bin/env bash
# Set everything up, check style and types, run the whole test suite in parallel.
# Arguments go to pytest, for example: ./scripts/test.sh -k store
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/setup.sh
bin="${VENV:-.venv}/bin"
"$bin/ruff" check .
"$bin/mypy"
"$bin/python" -m pytest -n "${PYTEST_WORKERS:-auto}" "$@"
