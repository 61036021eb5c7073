#!/bin/sh
# install.sh PYTHON ARGUMENTS: install packages into an environment, with uv, or with pip where uv cannot.
set -eu
python=$1
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m uv --version >/dev/null 2>&1 || "$python" -m pip install -q uv || true
"$python" -m uv pip install -q --python "$python" "$@" 2>/dev/null || "$python" -m pip install -q "$@"
