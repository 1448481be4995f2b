//! The configurations in the documentation are some.

#![allow(clippy::unwrap_used)]

use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

#[test]
fn the_configuration_in_the_readme_is_accepted() {
    let readme = include_str!("../../../README.md");
    let block = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = Config::parse(block, &[]).unwrap();
    assert_eq!((config.graph.copies, config.training.epochs), (3, 20));
}

#[test]
fn the_clock_in_the_documentation_is_accepted() {
    let page = include_str!("../../../docs/algorithms.md");
    let block = page.split("```toml\n").nth(1).unwrap();
    let config = Config::parse(block.split("```").next().unwrap(), &[]).unwrap();
    assert_eq!(config.clock.slow, [(3, 10.0)]);
    Experiment::prepare(config, &DataPaths::default()).unwrap();
}

/// The round loop that the documentation shows is the one that runs.
#[test]
fn the_round_loop_in_the_documentation_is_the_one_that_runs() {
    let page = include_str!("../../../docs/architecture.md");
    let code = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.split("//").next().unwrap().trim());
        let lines = lines.filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    let runs = code(include_str!("../src/run/node.rs"));
    let blocks: Vec<&str> = page.split("```rust,ignore\n").skip(1).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let shown = code(block.split("```").next().unwrap());
        let mut windows = runs.windows(shown.len());
        assert!(windows.any(|lines| lines == shown), "{shown:#?}");
    }
}
