//! The README's configuration is one.

#![allow(clippy::unwrap_used)]

use upwash::config::Config;

#[test]
fn the_configuration_in_the_readme_is_accepted() {
    let readme = include_str!("../../../README.md");
    let block = readme
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let config = Config::parse(block, &[]).unwrap();
    assert_eq!((config.graph.copies, config.training.epochs), (3, 20));
}
