//! `upwash topology` on the command line.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::process::{Command, Output};

fn upwash(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_upwash")).args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = upwash(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// The error of a command that must fail with exit code 2 and print nothing.
fn error(args: &[&str]) -> String {
    let output = upwash(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
fn close(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() < 1e-4, "{value} is not {expected}");
}

#[test]
fn list_has_a_working_example_of_every_graph() {
    let list = stdout(&["topology", "list"]);
    let examples: Vec<&str> = list.lines().filter_map(|line| line.trim().strip_prefix("try ")).collect();
    assert_eq!(examples.len(), 15);
    for example in examples.into_iter().filter(|example| !example.contains(".txt")) {
        json(&["topology", "analyze", example, "--json"]);
    }
}

#[test]
fn json_has_the_documented_fields() {
    let all = ["--budget", "0.5", "--rotate", "2", "--leaders", "0.1,0.1", "--json"];
    let object = json(&[&["topology", "analyze", "paper:L1"][..], &all].concat());
    assert_eq!(object["nodes"], 8);
    assert_eq!(object["edges"], 12);
    assert_eq!(object["degrees"], serde_json::json!([3, 5, 2, 4, 1, 2, 3, 4]));
    assert_eq!(object["connected"], true);
    close(&object["lambda2"], 0.670023);
    close(&object["lambda_max"], 6.329977);
    assert_eq!(object["matchings"][1], serde_json::json!([[1, 7], [3, 6]]));
    close(&object["dpsgd"]["alpha"], 2.0 / 7.0);
    close(&object["dpsgd"]["rho"], 0.653777);
    let matcha = &object["matcha"];
    close(&matcha["budget"], 0.5);
    assert_eq!(matcha["probabilities"].as_array().unwrap().len(), 5);
    close(&matcha["lambda2"], 0.561202);
    close(&matcha["alpha"], 0.396430);
    close(&matcha["rho"], 0.643975);
    let rotation = &object["rotation"];
    assert_eq!(rotation["relabelings"].as_array().unwrap().len(), 2);
    assert_eq!(rotation["expected_degrees"], Value::from(vec![3.0; 8]));
    close(&rotation["lambda2_mean"], 3.0);
    let al_dsgd = &object["al_dsgd"];
    close(&al_dsgd["rho_random"], 0.608637);
    close(&al_dsgd["rho_worst"], 0.876674);
    close(&al_dsgd["w_safe"], 0.11666);
    close(&al_dsgd["step_factor"], 1.0);
    for key in ["effective_workers", "mean_drift"] {
        assert!(al_dsgd[key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn json_omits_analyses_that_were_not_requested() {
    let object = json(&["topology", "analyze", "ring:8", "--json"]);
    for key in ["matcha", "rotation", "al_dsgd", "pieces"] {
        assert_eq!(object.get(key), None, "{key}");
    }
}

#[test]
fn tables_fit_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("g"), "0 1\n").unwrap();
    let in_pieces = format!("file:{},nodes=30", folder.path().join("g").display());
    for graph in [
        "paper:L1",
        "paper:L1@5",
        "star:40",
        "complete:20",
        "barabasi-albert:150,links=3",
        "path:1",
        "hypercube:32",
        &in_pieces,
    ] {
        let rest = ["--budget", "0.7", "--rotate", "2", "--leaders", "0.05,0.1"];
        let analysis = stdout(&[&["topology", "analyze", graph][..], &rest].concat());
        let optimum = stdout(&["topology", "optimize", graph, "--budget", "0.3"]);
        let list = stdout(&["topology", "list"]);
        for line in analysis.lines().chain(optimum.lines()).chain(list.lines()) {
            assert!(line.chars().count() <= 80, "{graph}: {line}");
            assert_eq!(line, line.trim_end(), "{graph}");
        }
    }
}

#[test]
fn disconnected_graph_is_not_an_error() {
    let object = json(&["topology", "analyze", "paper:L1@5", "--budget", "0.5", "--json"]);
    assert_eq!(object["connected"], false);
    assert_eq!(object["dpsgd"]["rho"], 1.0);
    assert_eq!(object["matcha"]["rho"], 1.0);
    assert_eq!(object["lambda2"], 0.0);
    assert_eq!(object["pieces"].as_array().unwrap().len(), 3);
    let table = stdout(&["topology", "analyze", "paper:L1@5"]);
    assert!(table.contains("3 pieces that never agree"));
}

#[test]
fn optimum_is_printed_with_its_upper_bound() {
    let table = stdout(&["topology", "optimize", "paper:L1", "--budget", "0.5"]);
    assert!(table.contains("lambda_2 of the expected graph is 0.561202"), "{table}");
    let object = json(&["topology", "optimize", "paper:L1", "--budget", "0.5", "--json"]);
    close(&object["matcha"]["lambda2_upper_bound"], 0.561202);
}

#[test]
fn drawings_are_written_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("l1.svg");
    let path = file.to_str().unwrap();
    stdout(&["topology", "draw", "paper:L1", "--rotate", "3", "-o", path]);
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<circle ").count(), 24);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(stdout(&["topology", "draw", "ring:4", "-o", "-"]).starts_with("<svg "));

    // Symbolic links and devices are written through, not replaced.
    #[cfg(unix)]
    {
        let link = folder.path().join("link.svg");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        stdout(&["topology", "draw", "ring:4", "-o", link.to_str().unwrap()]);
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap().matches("<circle ").count(), 4);
        stdout(&["topology", "draw", "ring:4", "-o", "/dev/null"]);
        assert!(!std::path::Path::new("/dev/null").is_file());
    }

    let missing = folder.path().join("no/such/folder/x.svg");
    let said = error(&["topology", "draw", "ring:4", "-o", missing.to_str().unwrap()]);
    assert!(said.contains("cannot write") && said.contains("x.svg"), "{said}");
    let other = folder.path().join("other.svg");
    error(&["topology", "draw", "ring:x", "-o", other.to_str().unwrap()]);
    assert!(!other.exists());
}

#[test]
fn invalid_input_is_reported_with_its_location_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        format!("file:{}", path.display())
    };
    let cases = [
        (file("loop.txt", b"0 1\n1 1\n"), "loop.txt, line 2: node 1 is linked to itself"),
        (file("twice.txt", b"0 1\n1 2\n1 0\n"), "twice.txt, line 3: nodes 0 and 1 are linked twice"),
        (file("word.txt", b"0 1\n1 two\n"), "word.txt, line 2: `two` is not a node number"),
        (file("empty.txt", b"# nobody\n"), "empty.txt: the file has no links"),
        (file("binary.txt", &[0xff, 0, 1]), "binary.txt: this is not a text file"),
        (file("range.txt", b"0 9\n") + ",nodes=4", "range.txt, line 1: node 9 is out of range"),
        (file("from1.txt", b"1 2\n2 3\n"), "no link has node 0"),
        ("file:nowhere.txt".into(), "cannot read nowhere.txt: No such file"),
        ("file:/dev/zero".into(), "/dev/zero: more than"),
        ("torus:1x8".into(), "a side of 1 is too short"),
        ("wheel:8".into(), "unknown kind `wheel`"),
        ("ring:eight".into(), "`eight` is not a number"),
        ("ring:5000".into(), "5000 workers are too many to analyze"),
    ];
    for (graph, said) in cases {
        let error = error(&["topology", "analyze", &graph]);
        assert!(error.contains(said), "{graph}: {error}");
    }
    let dense = error(&["topology", "optimize", "complete:400", "--budget", "0.5"]);
    assert!(dense.contains("79800 links would take hours: at most 40000"), "{dense}");
    let word = error(&["topology", "optimize", "ring:8", "--budget", "half"]);
    assert!(word.contains("write a number above 0 and at most 1"), "{word}");
    for budget in ["0", "-0.5", "1.5", "nan"] {
        let error = error(&["topology", "optimize", "ring:8", "--budget", budget]);
        assert!(error.contains("must be above 0 and at most 1"), "{budget}: {error}");
    }
    for leaders in ["0.1", "0.6,0.6", "-0.1,0.1", "a,b"] {
        let error = error(&["topology", "analyze", "ring:8", "--leaders", leaders]);
        assert!(error.contains(leaders), "{leaders}: {error}");
    }
    assert!(error(&["topology", "analyze", "ring:8", "--rotate", "0"]).contains("at least 1"));
}
