#!/usr/bin/env bash
# Make the environment .venv: dgl-heta, DGL and the releases that DGL runs with (constraints.txt),
# and the plugins of this tree. With --newest, make .venv-newest instead: the newest releases of
# everything, and no DGL, which is what the core must run with as well.
# PYTHON chooses the interpreter (3.10 to 3.12 with DGL, 3.10 to 3.13 without); VENV another
# directory.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ "${1:-}" == --newest ]]; then
    venv="${VENV:-.venv-newest}" newest_python=13
    install=(--upgrade --upgrade-strategy eager --editable ".[test]")
else
    venv="${VENV:-.venv}" newest_python=12
    install=(--constraint constraints.txt --editable ".[dev]")
fi

# What decides what is installed; unchanged since last time means nothing to do.
stamp="$venv/.installed"
wanted="$(cat constraints.txt pyproject.toml setup.py scripts/setup.sh plugins/*/pyproject.toml | cksum) $PWD"
if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
    exit 0
fi

supported() {
    "$1" -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $newest_python))" 2>/dev/null
}
python=""
for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.10 python3.13 python; do
    if [[ -n "$candidate" ]] && supported "$candidate"; then python="$candidate"; break; fi
done
if [[ -z "$python" ]]; then
    echo "error: no Python from 3.10 to 3.$newest_python found; install one, or set PYTHON to it" >&2
    exit 2
fi

echo "Setting up $venv with $("$python" --version) (a few minutes, about 5 GB) …" >&2
[[ -x "$venv/bin/python" ]] && supported "$venv/bin/python" || "$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" --upgrade "pip>=23" "setuptools>=77" wheel
for plugin in plugins/*/; do install+=(--editable "$plugin"); done  # with what they need
"${pip[@]}" "${install[@]}"
printf '%s' "$wanted" > "$stamp"
