//! What the program `upwash` shares with `upwash-reproduce`: engines, progress, interruption, exit codes. No stable interface:
//! the library for other programs is the crate `upwash`.

// A closed stderr is no reason to panic: `tell!` says the same.
#![warn(clippy::print_stderr)]

#[doc(hidden)]
pub mod configs;
#[doc(hidden)]
pub mod engines;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod output;
#[doc(hidden)]
pub mod parallel;
#[doc(hidden)]
pub mod progress;
#[doc(hidden)]
pub mod runs;

/// The commit that the program was built from, where that could be known: results are kept with it.
#[doc(hidden)]
pub const COMMIT: &str = env!("UPWASH_COMMIT");
