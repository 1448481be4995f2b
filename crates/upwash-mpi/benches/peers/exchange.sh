#!/usr/bin/env bash
# Times an AL-DSGD exchange between eight ranks beside MPI_Allreduce and beside mpi4py, in turn, three times.
# EXCHANGE is the built benchmark (cargo build --release -p upwash-mpi --features mpi --benches), PYTHON a
# Python with mpi4py and numpy.
set -euo pipefail
exchange=${EXCHANGE:?the path of the built benchmark, target/release/deps/exchange-...}
python=${PYTHON:-python3}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for _ in 1 2 3; do
  mpirun --oversubscribe -np 8 "$exchange"
  mpirun --oversubscribe -np 8 "$python" "$(dirname "$0")/exchange.py" 500000,30 25000000,4
done
