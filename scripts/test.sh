#!/usr/bin/env bash
# Set everything up, check style and types, run the whole test suite in parallel. With --newest
# first, also run the core's tests with the newest releases of everything and without
# DGL, and use the wheels outside the tree (smoke.sh).
#
# Other arguments go to pytest, for example: ./scripts/test.sh -k store
set -euo pipefail
cd "$(dirname "$0")/.."
newest=""
if [[ "${1:-}" == --newest ]]; then newest=yes; shift; fi
workers="${PYTEST_WORKERS:-auto}"

./scripts/setup.sh
bin="${VENV:-.venv}/bin"
"$bin/ruff" check .
"$bin/mypy"
need="${HETA_TESTS_NEED:-}"
HETA_TESTS_NEED="dgl${need:+,$need}" "$bin/python" -m pytest -n "$workers" "$@"

if [[ -n "$newest" ]]; then
    VENV="${VENV_NEWEST:-.venv-newest}" ./scripts/setup.sh --newest
    "${VENV_NEWEST:-.venv-newest}/bin/python" -m pytest -n "$workers" "$@"
    VENV="${VENV_NEWEST:-.venv-newest}" ./scripts/smoke.sh
fi
