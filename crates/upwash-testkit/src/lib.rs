//! What the tests of several crates share. Not published.

pub mod golden;
pub mod program;
mod quadratic;
mod steps;

pub use quadratic::Quadratic;
pub use steps::{Archive, distance, plain_steps};
