//! What the tests of several crates share. Not published.

pub mod golden;
mod quadratic;

pub use quadratic::Quadratic;
