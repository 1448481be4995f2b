//! The modules of the library depend on each other in one direction, and keep some questions to one file.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Collects the top-level modules that a file or directory refers to.
fn dependencies(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            dependencies(&entry.unwrap().path(), found);
        }
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    // Comments may link to any module.
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = code.collect::<Vec<_>>().join("\n");
    for rest in text.split("crate::").skip(1) {
        let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        found.extend(name.into_iter().next().map(String::from));
    }
}

#[test]
fn module_dependencies_are_acyclic() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name != "lib" {
            let mut found = BTreeSet::new();
            dependencies(&path, &mut found);
            found.remove(&name);
            modules.insert(name, found);
        }
    }
    assert!(modules.len() > 10, "{modules:?}");
    let names: BTreeSet<String> = modules.keys().cloned().collect();
    modules.values_mut().for_each(|found| found.retain(|name| names.contains(name)));
    // Repeatedly remove the modules without remaining dependencies, until none is left.
    while !modules.is_empty() {
        let free: Vec<String> =
            modules.iter().filter(|(_, needs)| needs.is_empty()).map(|(name, _)| name.clone()).collect();
        assert!(!free.is_empty(), "these modules have cyclic dependencies: {modules:#?}");
        for name in free {
            modules.remove(&name);
            modules.values_mut().for_each(|needs| needs.retain(|need| *need != name));
        }
    }
}

/// Everything else asks what it wants to know: whether costs are simulated, where checkpoints are, and so on.
#[test]
fn one_file_asks_whether_a_process_holds_all_workers() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut asking = BTreeSet::new();
    for library in std::fs::read_dir(crates).unwrap() {
        let source = library.unwrap().path().join("src");
        find(&source, &["is_whole()", "processes() == 1", "processes() > 1", "processes() != 1"], &mut asking);
    }
    let asking: Vec<&Path> = asking.iter().map(|path| path.strip_prefix(crates).unwrap()).collect();
    assert_eq!(asking, [Path::new("upwash/src/transport/placement.rs")]);
}

/// Collects the files in a directory that contain one of the texts.
fn find(directory: &Path, texts: &[&str], found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, texts, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let content = std::fs::read_to_string(&path).unwrap();
            if texts.iter().any(|text| content.contains(text)) {
                found.insert(path);
            }
        }
    }
}
