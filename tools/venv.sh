#!/usr/bin/env bash
# Make .venv and install this tree into it, unless that is done already.
#   tools/venv.sh          what `replay` needs to run
#   tools/venv.sh dev      with the tools of the test suite (any extra of pyproject.toml)
# PYTHON names the interpreter; without it python3.11, then python3 (3.11 to 3.13) are tried.
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-}

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
        if fits "$name"; then
            echo "$name"
            return
        fi
    done
    echo "replay needs Python 3.11, 3.12 or 3.13; tried: ${PYTHON:-python3.11 python3 python3.12 python3.13}." \
        "Name one with PYTHON=..." >&2
    return 2
}

# A copied folder or a removed interpreter leaves a .venv that cannot run: it is made anew.
if ! fits .venv/bin/python; then
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$python cannot make a virtual environment with pip in it." \
            "On Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 2
    fi
    "$python" -m venv --clear .venv
fi

# One stamp for each extra, newer than the file that lists what to install.
stamp=.venv/.installed${extra:+-$extra}
if [ ! "$stamp" -nt pyproject.toml ]; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}"
    touch "$stamp"
fi
