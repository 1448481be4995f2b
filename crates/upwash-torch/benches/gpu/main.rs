//! Checks and times the GPU engine: `gpu check`, `gpu liars`, `gpu scores`, `gpu memory`, `gpu speed`, `gpu export DIR`
//! (see scripts/check-gpu.sh). Needs a GPU; not part of the tests.

#[cfg(feature = "libtorch")]
mod check;
#[cfg(feature = "libtorch")]
#[path = "../../tests/common/mod.rs"]
mod common;
#[cfg(feature = "libtorch")]
mod export;
#[cfg(feature = "libtorch")]
mod liars;
#[cfg(feature = "libtorch")]
mod memory;
#[cfg(feature = "libtorch")]
mod scores;
#[cfg(feature = "libtorch")]
mod setup;
#[cfg(feature = "libtorch")]
mod speed;

#[cfg(not(feature = "libtorch"))]
fn main() {
    println!("built without the feature `libtorch`: rebuild with --features libtorch");
}

#[cfg(feature = "libtorch")]
fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    match arguments.next().as_deref() {
        Some("check") => check::check(),
        Some("speed") => speed::speed(),
        Some("liars") => liars::liars(),
        Some("memory") => memory::memory(),
        Some("scores") => scores::scores(),
        Some("export") => export::export(&arguments.next().expect("`gpu export` needs the folder to write to")),
        _ => eprintln!("usage: gpu check | gpu liars | gpu scores | gpu memory | gpu speed | gpu export DIR"),
    }
}
