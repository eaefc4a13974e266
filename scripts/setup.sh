#!/usr/bin/env bash
# Make the environment .venv: dgl-heta, DGL and the releases that DGL runs with (constraints.txt),
# and the plugins of this tree. With --newest, make .venv-newest instead: the newest releases of
# everything, and no DGL, which is what the core must run with as well. With --dgl WHEEL, make
# .venv-dgl24: DGL 2.4.0 from a wheel, which no index has, and its set (constraints-dgl24.txt).
# PYTHON chooses the interpreter (3.10 to 3.12 with DGL, 3.10 to 3.13 without); VENV another
# directory. With NO_COMPILE set modules are compiled when they are imported first, which saves a
# third of the time where the environment is removed again.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest_python=10 constraints=constraints.txt wheel=""
if [[ "${1:-}" == --newest ]]; then
    venv="${VENV:-.venv-newest}" newest_python=13
    install=(--upgrade --upgrade-strategy eager --editable ".[test]")
elif [[ "${1:-}" == --dgl ]]; then
    venv="${VENV:-.venv-dgl24}" constraints=constraints-dgl24.txt wheel="${2:-}"
    if [[ ! -f "$wheel" || ! "$wheel" =~ -cp3([0-9]+)- ]]; then
        echo "error: '$wheel' is no wheel of DGL 2.4.0; build one from DGL's tag v2.4.0 (CPU, for torch" \
            "2.4.0), and give its path: setup.sh --dgl WHEEL" >&2
        exit 2
    fi
    oldest_python="${BASH_REMATCH[1]}" newest_python="${BASH_REMATCH[1]}"
    install=(--constraint "$constraints" --editable ".[test,graphstorm]" "$wheel")
else
    venv="${VENV:-.venv}" newest_python=12
    install=(--constraint "$constraints" --editable ".[dev]")
fi

# What decides what is installed; unchanged since last time means nothing to do.
stamp="$venv/.installed"
wanted="$(cat "$constraints" pyproject.toml setup.py scripts/setup.sh plugins/*/pyproject.toml | cksum) $PWD $(basename "$wheel")"
if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
    exit 0
fi

supported() {
    "$1" -c "import sys; sys.exit(not (3, $oldest_python) <= sys.version_info[:2] <= (3, $newest_python))" 2>/dev/null
}
python=""
for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.10 python3.13 python; do
    if [[ -n "$candidate" ]] && supported "$candidate"; then python="$candidate"; break; fi
done
if [[ -z "$python" ]]; then
    echo "error: no Python from 3.$oldest_python to 3.$newest_python found; install one, or set PYTHON to it" >&2
    exit 2
fi

echo "Setting up $venv with $("$python" --version) (a few minutes, about 5 GB) …" >&2
[[ -x "$venv/bin/python" ]] && supported "$venv/bin/python" || "$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check ${NO_COMPILE:+--no-compile})
"${pip[@]}" --upgrade "pip>=23" "setuptools>=77" wheel
for plugin in plugins/*/pyproject.toml; do  # with what they need, and what their tests need
    extra=""; grep -q '^test = ' "$plugin" && extra="[test]"
    install+=(--editable "${plugin%/*}$extra")
done
"${pip[@]}" "${install[@]}"
# GraphStorm names a torchdata that DGL 2.1 cannot be imported with, and 2.4 does without.
[[ "${1:-}" == --newest ]] || "${pip[@]}" --no-deps graphstorm==0.5.0.post1
printf '%s' "$wanted" > "$stamp"
