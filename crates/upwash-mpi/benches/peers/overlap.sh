#!/usr/bin/env bash
# Times rounds of two ranks, each with one core and on a separate host, over a network on which an exchange takes as
# long as a gradient. EXCHANGE is the path of the built benchmark (cargo build --release -p upwash-mpi --features mpi
# --benches). Needs root.
set -euo pipefail
exchange=${EXCHANGE:?set it to the path of the built benchmark, target/release/deps/exchange-...}
source "$(dirname "$0")/../../../../scripts/hosts.sh"
make_hosts 2 200mbit
mpirun_on 2 sh -c 'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"' sh "$exchange" overlap 1000000
