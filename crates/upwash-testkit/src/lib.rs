//! What the tests of several crates share. Not published.

pub mod golden;
mod quadratic;
mod steps;

pub use quadratic::Quadratic;
pub use steps::{Archive, distance, plain_steps, row_plans, rows};
