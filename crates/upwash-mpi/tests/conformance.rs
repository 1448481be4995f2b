//! Runs the conformance suites under mpirun, with one and with several workers per rank.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn mpi_passes_the_conformance_suites() {
    // Cargo builds tests into `deps`, and examples into `examples` next to it.
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.push("examples/conformance");
    for ranks in ["2", "3", "4"] {
        let output = Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "-np", ranks])
            .arg(&program)
            .output()
            .expect("mpirun starts (on Debian, install openmpi-bin)");
        assert!(output.status.success(), "{ranks} ranks: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("\"qg-momentum\"] refuse"), "{ranks} ranks: {text}");
    }
}
