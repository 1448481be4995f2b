"""Times one round of the scripts released with MATCHA and AL-DSGD, with mpi4py: each rank pickles its model, sends it
to one neighbor after the other, sums the models that it receives, and waits at a barrier.

Usage: exchange.py VALUES,REPETITIONS ..."""

import sys
import time

import numpy
from mpi4py import MPI

# Graph L1 of the paper, one matching after the other.
LINKS = [(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (0, 1), (3, 7), (5, 6), (1, 2), (0, 7), (1, 3)]

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
for argument in sys.argv[1:]:
    count, times = map(int, argument.split(","))
    model, found = numpy.full(count, rank, numpy.float32), []
    for _ in range(times + 1):
        comm.Barrier()
        began = time.perf_counter()
        mixed = model * (1 - sum(rank in link for link in LINKS) / 8)
        for link in LINKS:
            if rank in link:
                other = link[1 - link.index(rank)]
                mixed += comm.sendrecv(model, dest=other, source=other) / 8
        comm.Barrier()
        found.append((time.perf_counter() - began) * 1e3)
        model = mixed
    if rank == 0:
        print(f"{count} values: mpi4py, pickled sendrecv and a barrier {sorted(found[1:])[times // 2]:.1f} ms", flush=True)
