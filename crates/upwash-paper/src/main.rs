//! The program `upwash-reproduce`.

use clap::Parser;
use std::process::ExitCode;
use upwash_cli::output::{Output, finish};
use upwash_paper::Args;

/// The exit codes are those of `upwash`.
fn main() -> ExitCode {
    let args = Args::parse();
    let mut out = Output(std::io::stdout().lock());
    let result = upwash_paper::run(&args, &mut out);
    finish(result, out)
}
