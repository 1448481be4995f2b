//! Test utilities that several crates share. Not published.

pub mod browser;
pub mod engine_suite;
pub mod external_suite;
pub mod golden;
pub mod liar;
pub mod program;
mod quadratic;
mod steps;
pub mod transport_suite;

pub use quadratic::Quadratic;
pub use steps::{Archive, distance, plain_steps, row_plans, rows};
