//! `upwash topology list`

use anyhow::Result;
use std::io::Write;
use upwash_topology::GraphKind;

pub(crate) fn run(out: &mut impl Write) -> Result<()> {
    for GraphKind {
        spelling,
        about,
        example,
        ..
    } in GraphKind::all()
    {
        writeln!(out, "{spelling}\n    {about}\n    try {example}")?;
    }
    Ok(())
}
