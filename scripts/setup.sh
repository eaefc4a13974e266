#!/usr/bin/env bash
# Make the environment .venv with dgl-heta, its pinned dependencies and its plugins.
# PYTHON chooses the interpreter (3.10, 3.11 or 3.12); VENV another directory.
set -euo pipefail
cd "$(dirname "$0")/.."
venv="${VENV:-.venv}"

# The files that decide what is installed; unchanged since last time means nothing to do.
stamp="$venv/.installed"
wanted="$(cat requirements.txt requirements-dev.txt pyproject.toml plugins/*/pyproject.toml | cksum) $PWD"
if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
    exit 0
fi

supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }
python=""
for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.10 python; do
    if [[ -n "$candidate" ]] && supported "$candidate"; then python="$candidate"; break; fi
done
if [[ -z "$python" ]]; then
    echo "error: no Python 3.10, 3.11 or 3.12 found; install one, or set PYTHON to it" >&2
    exit 2
fi

echo "Setting up $venv with $("$python" --version) (a few minutes, about 5 GB) …" >&2
[[ -x "$venv/bin/python" ]] && supported "$venv/bin/python" || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=23" "setuptools>=77" wheel
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
for plugin in plugins/*/; do
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable "$plugin"
done
printf '%s' "$wanted" > "$stamp"
