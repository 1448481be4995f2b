//! The configurations and the code in the documentation are valid.

#![allow(clippy::unwrap_used)]

use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

#[test]
fn readme_configuration_is_accepted() {
    let readme = include_str!("../../../README.md");
    let block = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = Config::parse(block, &[]).unwrap();
    assert_eq!((config.graph.copies, config.training.epochs), (3, 20));
}

#[test]
fn clock_configuration_in_the_documentation_is_accepted() {
    let page = include_str!("../../../docs/algorithms.md");
    let block = page.split("```toml\n").nth(1).unwrap();
    let config = Config::parse(block.split("```").next().unwrap(), &[]).unwrap();
    assert_eq!(config.clock.slow, [(3, 10.0)]);
    Experiment::prepare(config, &DataPaths::default()).unwrap();
}

#[test]
fn round_loop_in_the_documentation_matches_the_code() {
    let page = include_str!("../../../docs/architecture.md");
    let code = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split("//").next().unwrap().trim());
        let lines = lines.filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    let source = code(include_str!("../src/run/node.rs"));
    let blocks: Vec<&str> = page.split("```rust,ignore\n").skip(1).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let shown = code(block.split("```").next().unwrap());
        let mut windows = source.windows(shown.len());
        assert!(windows.any(|lines| lines == shown), "{shown:#?}");
    }
}
