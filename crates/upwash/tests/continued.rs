//! Runs that continue others: extended by epochs, started from a model, with the best model kept.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use upwash::config::Config;
use upwash::{Summary, Trainer};

/// A summary as JSON, in which the unknown loss of a server equals itself.
fn json(summary: &Summary) -> serde_json::Value {
    serde_json::to_value(summary).unwrap()
}

/// The summary of a run, without its real time.
fn train(config: &str, set: &[&str], output: &Path) -> Summary {
    let set: Vec<String> = set.iter().map(|set| set.to_string()).collect();
    let trainer = Trainer::new(Config::parse(config, &set).unwrap()).output(output).resume(true);
    let summary = trainer.run().unwrap_or_else(|error| panic!("{config}: {error}"));
    Summary { wall_seconds: None, ..summary }
}

fn error(config: &str, set: &[&str], output: &Path) -> String {
    let set: Vec<String> = set.iter().map(|set| set.to_string()).collect();
    let trainer = Trainer::new(Config::parse(config, &set).unwrap()).output(output).resume(true);
    trainer.run().unwrap_err().to_string()
}

fn model(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model.safetensors")).unwrap()
}

/// With every kind of state that a checkpoint can have. In virtual time, what the workers are doing when a run ends is
/// part of it as well.
#[test]
fn extended_run_equals_one_of_that_length() {
    let folder = tempfile::tempdir().unwrap();
    for (name, config) in [
        ("matcha", "[algorithm]\nbase = \"matcha\"\n[graph]\ncopies = 3\n[training]\nepochs = 2\n"),
        ("d2", "[algorithm]\nname = \"d2\"\n[training]\nepochs = 2\ndecay = \"steps\"\ndecay_at = [1.0, 3.0]\n"),
        ("choco", "[algorithm]\nname = \"choco\"\n[training]\nepochs = 2\n"),
        ("slowmo", "[algorithm]\nname = \"slowmo\"\n[training]\nepochs = 2\nwarmup_epochs = 3.0\n"),
        ("easgd", "[algorithm]\nname = \"easgd\"\n[graph]\ntopology = \"star:5\"\n[training]\nepochs = 2\n"),
        ("ad-psgd", "[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 2\n"),
    ] {
        let [whole, part] = ["whole", "part"].map(|kind| folder.path().join(format!("{name}-{kind}")));
        let expected = train(config, &["training.epochs=4"], &whole);
        assert!(train(config, &[], &part).rounds < expected.rounds);
        assert_eq!(json(&train(config, &["training.epochs=4"], &part)), json(&expected), "{name}");
        assert!(model(&part) == model(&whole), "{name}");
        let events = std::fs::read_to_string(part.join("events.jsonl")).unwrap();
        let count = |kind: &str| events.matches(&format!("\"event\":\"{kind}\"")).count();
        assert_eq!((count("round"), count("epoch"), count("ended")), (expected.rounds as usize, 4, 1), "{name}");
        assert!(events.contains("the run is extended from 2 to 4 epochs"), "{name}");
    }
}

#[test]
fn only_epochs_may_change_and_only_upwards() {
    let (folder, config) = (tempfile::tempdir().unwrap(), "[training]\nepochs = 2\ncheckpoint_every = 7\n");
    let run = folder.path().join("r");
    let first = train(config, &[], &run);
    assert_eq!(train(config, &[], &run), first, "a run that is over is not run again");
    let shorter = error(config, &["training.epochs=1"], &run);
    assert!(shorter.contains("training.epochs = 1, but the run has 2: it cannot become shorter"), "{shorter}");
    let other = error(config, &["training.epochs=3", "seed=5"], &run);
    assert!(other.contains("seed = 5 (there 1), training.epochs = 3 (there 2)"), "{other}");
    assert_eq!(Summary::read(&run).unwrap().unwrap().rounds, first.rounds, "a refused run is left alone");
    // Interrupted after its checkpoint, it may be extended, too.
    std::fs::remove_file(run.join("summary.json")).unwrap();
    assert_eq!(train(config, &["training.epochs=3"], &run).rounds, 36);
    let back = error(config, &[], &run);
    assert!(back.contains("training.epochs = 2, but the run has 3"), "{back}");
}

#[test]
fn cosine_of_an_extended_run_is_announced() {
    let (folder, config) = (tempfile::tempdir().unwrap(), "[training]\nepochs = 1\ndecay = \"cosine\"\n");
    let run = folder.path().join("r");
    train(config, &[], &run);
    train(config, &["training.epochs=2"], &run);
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert!(events.contains("follows the cosine of the longer run"), "{events}");
}

/// A learning rate of almost 0 leaves the models where they start, so that the average must be the initial model. The
/// slow momentum of SlowMo and the copies of CHOCO would move models that did not start there as well.
#[test]
fn all_workers_start_from_the_initial_model() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let cnn = "model = \"cnn\"\n[training]\nepochs = 1\n";
    train(cnn, &[], &first);
    let from = format!("training.initial_model={}", toml_string(&first));
    for name in ["dpsgd", "al-dsgd", "slowmo", "gradient-tracking", "ad-psgd"] {
        let (run, algorithm) = (folder.path().join(name), format!("algorithm.name={name}"));
        let set = [from.as_str(), "training.learning_rate=1e-30", &algorithm];
        train(cnn, &set, &run);
        assert!(tensors(&run) == tensors(&first), "{name}");
        // The run keeps the model, so that it can be repeated and resumed from its directory alone.
        assert!(std::fs::read(run.join("initial-model.safetensors")).unwrap() == model(&first), "{name}");
    }
    let own = std::fs::read_to_string(folder.path().join("dpsgd/config.toml")).unwrap();
    assert!(
        own.contains("initial_model = \"initial-model.safetensors\"") && own.contains("start = \"equal\""),
        "{own}"
    );
    // Another model under the same name is another run.
    train("model = \"cnn\"\nseed = 2\n[training]\nepochs = 1\n", &[], &folder.path().join("second"));
    std::fs::copy(folder.path().join("second/model.safetensors"), first.join("model.safetensors")).unwrap();
    let changed = error(
        cnn,
        &[&from, "training.learning_rate=1e-30", "algorithm.name=dpsgd", "training.epochs=2"],
        &folder.path().join("dpsgd"),
    );
    assert!(changed.contains("training.epochs = 2 (there 1)"), "{changed}");
    for (set, said) in [
        (&[from.as_str(), "model=mlp:8"][..], "does not fit the network"),
        (&[from.as_str(), "training.start=different"], "remove one of them"),
        (&["training.initial_model=none.safetensors"], "cannot read"),
    ] {
        let refused = error(cnn, set, &folder.path().join("refused"));
        assert!(refused.contains(said), "{refused}");
    }
    assert!(!folder.path().join("refused").exists());
}

fn toml_string(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

/// The content of a model file without its metadata, which names the algorithm.
fn tensors(run: &Path) -> Vec<u8> {
    let bytes = model(run);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

/// Workers that start from the best model, and do not move, have its accuracy.
#[test]
fn best_model_is_kept_with_its_accuracy() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[training]\nepochs = 12\nlearning_rate = 0.3\nkeep_best = true\ncheckpoint_every = 60\n";
    let run = folder.path().join("r");
    let summary = train(config, &[], &run);
    let best = summary.best.unwrap();
    assert!(best.test_accuracy > summary.averaged_model_accuracy && best.epoch < 10, "{summary:?}");
    let from = format!("training.initial_model={}", toml_string(&run.join("best.safetensors")));
    let still = [from.as_str(), "training.learning_rate=1e-30", "training.epochs=1", "training.keep_best=false"];
    assert_eq!(train(config, &still, &folder.path().join("still")).worst_accuracy, best.test_accuracy);
    // A run that is resumed after the best epoch remembers it.
    let kept = std::fs::read(run.join("best.safetensors")).unwrap();
    std::fs::remove_file(run.join("summary.json")).unwrap();
    std::fs::remove_file(run.join("checkpoint-000000144.upwash")).unwrap();
    assert_eq!(train(config, &[], &run), summary);
    assert!(std::fs::read(run.join("best.safetensors")).unwrap() == kept);
    assert!(train("[training]\nepochs = 1\n", &[], &folder.path().join("plain")).best.is_none());
    let threads = "[algorithm]\nname = \"ad-psgd\"\n[training]\nasynchronous = \"threads\"\nkeep_best = true\n";
    assert!(error(threads, &[], &folder.path().join("threads")).contains("training.keep_best"));
}
