#!/usr/bin/env bash
# Times an AL-DSGD exchange between eight ranks, and compares it with MPI_Allreduce and with mpi4py, alternately, three
# times. EXCHANGE is the path of the built benchmark (cargo build --release -p upwash-mpi --features mpi --benches).
# PYTHON is a Python interpreter with mpi4py and numpy.
set -euo pipefail
exchange=${EXCHANGE:?set it to the path of the built benchmark, target/release/deps/exchange-...}
python=${PYTHON:-python3}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for _ in 1 2 3; do
  mpirun --oversubscribe -np 8 "$exchange"
  mpirun --oversubscribe -np 8 "$python" "$(dirname "$0")/exchange.py" 500000,30 25000000,4
done
