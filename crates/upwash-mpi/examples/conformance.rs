//! Conformance suites of transports and of external training loops, for the ranks of an MPI job:
//! `mpirun -np 2 target/debug/examples/conformance`. `tests/conformance.rs` runs it.

use std::time::Duration;
use upwash_mpi::Mpi;
use upwash_testkit::{external_suite, golden, transport_suite};

fn main() {
    let rank = upwash_mpi::join().expect("mpirun started this process");
    let mut transport = Mpi::new(rank, 4, Duration::from_secs(60)).expect("transport starts");
    transport_suite::check_process(&mut transport);
    let cases = golden::four_worker_cases();
    let count = cases.len();
    let refused = external_suite::check(cases, |_, drive| drive(&mut transport));
    if rank.number == 0 {
        println!("{} algorithms agree, {refused:?} refuse", count - refused.len());
    }
    drop(transport);
    upwash_mpi::leave();
}
