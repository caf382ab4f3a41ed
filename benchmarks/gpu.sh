#!/usr/bin/env bash
# Everything about the card in one command, in under 6 minutes and without a network:
#
#     benchmarks/gpu.sh                        all of it; without a GPU at toy size, and it says what it did not measure
#     benchmarks/gpu.sh --only speed,engine    these sections; --out FILE: where the lines go
#     benchmarks/gpu.sh wheels                 on a machine with a network: fetch the wheels that the other may lack
#
# The machine has Python 3.12 with torch 2.11 and Triton 3.6; PYTHON names the interpreter.  What else is missing is
# installed from the folder of wheels, $WHEELS, into .cache/gpu; without that folder the script says what is missing and
# goes on with what it can.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-$(command -v .venv/bin/python || command -v python3)}
WHEELS=${WHEELS:-.cache/gpu/wheels}
SITE=$PWD/.cache/gpu/site

if [ "${1:-}" = wheels ]; then
  exec "$PYTHON" benchmarks/gpu/packages.py fetch "$WHEELS"
fi
"$PYTHON" benchmarks/gpu/packages.py install "$WHEELS" "$SITE"

export PYTHONPATH="$SITE${PYTHONPATH:+:$PYTHONPATH}"
# Without a GPU Triton's kernels run in its interpreter, which has to be said before Triton is imported.
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || export TRITON_INTERPRET=1
exec "$PYTHON" -m stepwell.benchmarks.gpu "$@"
