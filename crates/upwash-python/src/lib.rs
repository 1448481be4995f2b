//! The native part of the Python package `upwash`, the module `upwash._upwash`. Its documentation is in the stubs,
//! `python/src/upwash/_upwash.pyi`, and in the modules of `python/src/upwash` that use it.

mod algorithm;
mod arrays;
mod compute;
mod dataset;
mod errors;
mod experiment;
mod graph;
#[cfg(feature = "mpi")]
mod mpi;
mod node;
mod origin;
mod planner;
mod plans;
mod reports;
mod sampler;
mod schedule;
mod session;
mod setup;
mod theory;
mod view;

// The extension module for MPI is this one with the feature `mpi`, under a name of its own.
#[pyo3::pymodule]
#[cfg_attr(feature = "mpi", pyo3(name = "_upwash_mpi"))]
mod _upwash {
    #[pymodule_export]
    use crate::{
        algorithm::time_plans,
        dataset::PyDataset,
        experiment::PyExperiment,
        graph::{PyGraph, graph_kinds},
        node::{PyNode, key_fingerprint, new_key},
        planner::PyPlanner,
        reports::{figures, is_running, margin, read_model, report_page, run_json},
        sampler::PySampler,
        schedule::{PyRound, PySchedule},
        session::PySession,
        setup::{json_of_toml, toml_of_json},
        theory::{PyLeaders, PyMatcha, PyRotation},
        view::{PyReceived, PyView},
    };

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    const COMMIT: &str = upwash_cli::COMMIT;
}
