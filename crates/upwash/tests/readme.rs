//! The configurations and the code in the documentation are valid.

#![allow(clippy::unwrap_used)]

use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

/// What stands between two marks of a text, for the first time.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    text.split_once(start).and_then(|(_, rest)| rest.split_once(end)).unwrap().0
}

#[test]
fn configurations_of_the_readme_and_the_guide_are_accepted() {
    let readme = between(include_str!("../../../README.md"), "CONFIG: &str = r#\"", "\"#;");
    let config = Config::parse(readme, &[]).unwrap();
    assert_eq!((config.graph.copies, config.training.epochs), (3, 40));
    let guide = between(include_str!("../../../docs/training.md"), "cat > al-dsgd.toml << 'EOF'\n", "EOF\n");
    let config = Config::parse(guide, &[]).unwrap();
    assert_eq!((config.graph.copies, config.training.epochs), (3, 20));
}

#[test]
fn readme_can_be_read_in_two_minutes() {
    let readme = include_str!("../../../README.md");
    let prose = readme.split("```").step_by(2).flat_map(str::split_whitespace);
    let words = prose.filter(|word| word.chars().any(char::is_alphanumeric)).count();
    assert!(words <= 900, "README.md has {words} words without code: at most 900, the rest belongs into docs/");
}

#[test]
fn configuration_reference_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let current = upwash::schema::reference();
    if std::env::var_os("UPWASH_RECORD").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let remedy = "docs/configuration.md is out of date: UPWASH_RECORD=1 cargo test -p upwash --test readme";
    assert!(std::fs::read_to_string(&path).unwrap() == current, "{remedy}");
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
