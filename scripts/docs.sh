#!/usr/bin/env bash
# Build the documentation as a site: build/docs/html/index.html. Makes .venv first (scripts/setup.sh),
# and installs Sphinx into it where it is missing. Warnings are errors. --out DIR: another place.
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh
python="${VENV:-.venv}/bin/python"
if ! "$python" -c "import furo, myst_parser, sphinx" 2>/dev/null; then
    "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
        --editable ".[docs]"
fi
exec "$python" scripts/build_docs.py "$@"
