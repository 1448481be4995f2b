//! `upwash train`, `data` and `algorithms` on the command line. One file, because every test file is a program to link.

#![allow(clippy::unwrap_used)]

mod common;

use common::{error, flat, interrupted, outcome, said, summary, upwash};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use upwash::run::Summary;

fn folder_with(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    folder
}

#[test]
fn run_writes_the_documented_files() {
    let folder = folder_with("[training]\nepochs = 2\n");
    let text = said(folder.path(), &["train", "run.toml", "--out", "r", "--set", "seed=5"]);
    assert!(text.contains("digits: 1442 images, split by `balanced`"), "{text}");
    assert!(text.contains("    mean  "), "{text}");
    let run = folder.path().join("r");
    let summary = outcome(&run);
    assert_eq!(summary["algorithm"], "AL-DSGD (sound) over D-PSGD");
    assert_eq!(summary["graph"], "paper:L1");
    assert_eq!(summary["status"], "finished");
    assert_eq!((summary["workers"].as_u64(), summary["rounds"].as_u64()), (Some(8), Some(24)));
    assert_eq!(summary["per_worker"].as_array().unwrap().len(), 8);
    let model = std::fs::read(run.join("model.safetensors")).unwrap();
    let model = safetensors::SafeTensors::deserialize(&model).unwrap();
    assert_eq!(model.tensor("1.weight").unwrap().shape(), [64, 64]);
    assert_eq!(model.len(), 4);
    assert!(summary["per_worker"][7]["train_loss"].is_f64());
    for key in ["mean_accuracy", "worst_accuracy", "averaged_model_accuracy", "consensus_distance"] {
        assert!(summary[key].is_f64(), "{key}");
    }
    // 24 rounds with 24 messages of 4,810 parameters each.
    assert_eq!(summary["bytes_sent"].as_u64(), Some(24 * 24 * 4810 * 4));
    let resolved = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(resolved.contains("seed = 5") && resolved.contains("momentum = 0.9"), "{resolved}");
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let kinds: Vec<String> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().into())
        .collect();
    assert_eq!((kinds.first().unwrap().as_str(), kinds.last().unwrap().as_str()), ("started", "ended"));
    assert_eq!(kinds.iter().filter(|kind| *kind == "round").count(), 24);
    assert_eq!(kinds.iter().filter(|kind| *kind == "epoch").count(), 2);

    let again = error(folder.path(), &["train", "run.toml", "--out", "r"]);
    assert!(again.contains("r holds a run already"), "{again}");
}

#[test]
fn invalid_configurations_are_reported_with_location_and_remedy() {
    for (config, said) in [
        ("[training]\nepoch = 3\n", "did you mean `epochs`?"),
        ("[training]\nlearning_rate = -1.0\n", "training.learning_rate = -1: must be a finite number above 0"),
        ("model = \"mlp:99999999999999999\"\n", "mlp:99999999999999999\": 8 workers of"),
        ("model = \"cnn\"\n[data]\nname = \"synthetic:shape=1x1x1\"\n", "a layer has no inputs"),
        (
            "[graph]\nlinks = \"alternating\"\nweights = \"metropolis\"\n",
            "graph.weights: only graph.links = \"whole\" has configurable weights",
        ),
        ("[graph]\ntopology = \"ring:2000\"\n", "cannot split 1442 images among 2000 workers"),
        ("[graph]\ntopology = \"file:none.txt\"\n", "/none.txt: No such file"),
        ("workers = 6\n[graph]\ntopology = \"ring:8\"\n", "workers = 6, but the graph `ring:8` has 8"),
        ("[graph]\ncopies = 3\nfirst_copy = 3\n", "graph.first_copy = 3: must be below graph.copies = 3"),
        (
            "[graph]\ncopies = 3\nfirst_copy = 1\norder = \"random\"\n",
            "only graph.order = \"in-turn\" has a first copy",
        ),
        ("[algorithm]\nvariant = \"released\"\noverlap = true\n", "the released code exchanges after the step"),
        ("[data]\nname = \"synthetic:trian=5\"\n", "synthetic:trian=5: write any of"),
        ("[data]\nname = \"mnits\"\n", "data `mnits` is unknown"),
        ("[data]\nname = \"cifar10\"\n", "upwash data get cifar10"),
        ("[algorithm]\nname = \"matcha\"\n[graph]\nlinks = \"alternating\"\n", "MATCHA chooses the links"),
        ("[graph]\ntopology = \"ring:4\"\ncopies = 2\nrelabelings = \"paper\"\n", "for 8 workers"),
        // Keys that would be ignored are refused.
        ("[algorithm]\nname = \"sgp\"\n[graph]\nweights = \"alpha=0.9\"\n", "graph.weights: SGP divides"),
        ("[algorithm]\nname = \"lsgd\"\ngroups = 100\n", "algorithm.groups = 100: there are only 8 workers"),
        ("[algorithm]\nname = \"all-reduce\"\n[graph]\ncopies = 3\n", "does not use the links of the graph"),
        ("[algorithm]\nname = \"ad-psgd\"\n[graph]\nweights = \"metropolis\"\n", "without rounds"),
    ] {
        let folder = folder_with(config);
        let error = error(folder.path(), &["train", "run.toml", "--out", "r"]);
        assert!(error.contains(said) && error.contains("run.toml"), "{config}: {error}");
        assert!(!folder.path().join("r").exists(), "{config}");
    }
    let folder = folder_with("");
    assert!(error(folder.path(), &["train", "other.toml"]).contains("cannot read other.toml"));
    let set = error(folder.path(), &["train", "run.toml", "--set", "epochs"]);
    assert!(set.contains("write key=value"), "{set}");
    let resume = error(folder.path(), &["train", "run.toml", "--out", "none", "--resume"]);
    assert!(resume.contains("no checkpoint to resume from"), "{resume}");
}

#[test]
fn resuming_gives_the_same_result_and_skips_damaged_checkpoints() {
    let folder = folder_with("[training]\nepochs = 3\ncheckpoint_every = 10\n");
    said(folder.path(), &["train", "run.toml", "--out", "whole"]);
    let whole = outcome(&folder.path().join("whole"));
    // As after a crash: there is no summary, and the newest checkpoint is truncated.
    let run = folder.path().join("whole");
    std::fs::remove_file(run.join("summary.json")).unwrap();
    let first_model = std::fs::read(run.join("model.safetensors")).unwrap();
    let newest = run.join("checkpoint-000000036.upwash");
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() - 100]).unwrap();
    let output = upwash(folder.path(), &["train", "run.toml", "--out", "whole", "--resume"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("checkpoint-000000036.upwash is damaged"), "{said}");
    assert_eq!(outcome(&run), whole);
    assert!(std::fs::read(run.join("model.safetensors")).unwrap() == first_model);
    std::fs::remove_file(run.join("summary.json")).unwrap();
    // The events have every round once, as if the run had never stopped.
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let rounds: Vec<u64> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"] == "round")
        .map(|event| event["round"].as_u64().unwrap())
        .collect();
    assert_eq!(rounds, (0..36).collect::<Vec<_>>());
    let count = |kind: &str| events.matches(&format!("\"event\":\"{kind}\"")).count();
    assert_eq!((count("epoch"), count("started"), count("ended")), (3, 2, 1));

    let other = ["train", "run.toml", "--out", "whole", "--resume", "--set", "seed=9"];
    assert!(error(folder.path(), &other).contains("seed = 9 (there 1)"));
}

/// A checkpoint that another user may not read is neither deleted nor passed over.
#[cfg(unix)]
#[test]
fn unreadable_checkpoint_is_not_passed_over() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder_with("[training]\nepochs = 3\ncheckpoint_every = 10\n");
    said(folder.path(), &["train", "run.toml", "--out", "r"]);
    let run = folder.path().join("r");
    std::fs::remove_file(run.join("summary.json")).unwrap();
    let set_mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for path in [folder.path(), &run] {
        set_mode(path, 0o777);
    }
    std::fs::read_dir(&run).unwrap().for_each(|file| set_mode(&file.unwrap().path(), 0o666));
    let newest = run.join("checkpoint-000000036.upwash");
    set_mode(&newest, 0o000);
    let before = std::fs::read_dir(&run).unwrap().count();
    let mut resume = common::command(folder.path(), &["train", "run.toml", "--out", "r", "--resume"]);
    // No permission keeps root out.
    if std::fs::File::open(&newest).is_ok() {
        std::os::unix::process::CommandExt::uid(&mut resume, 65534);
    }
    let output = resume.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot read checkpoint r/checkpoint-000000036.upwash"), "{said}");
    assert!(said.contains("make it readable, or move it away"), "{said}");
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), before);
}

/// A full disk, simulated by a limit on the length of files.
#[cfg(unix)]
#[test]
fn full_disk_is_an_error_and_keeps_the_last_valid_checkpoint() {
    let folder = folder_with("[training]\nepochs = 400\ncheckpoint_every = 12\n");
    let run = folder.path().join("r");
    // Two checkpoints of equal length are written before the events exceed the limit.
    let script = "trap '' XFSZ; ulimit -f 700; exec \"$0\" train run.toml --out r";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_upwash")])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write r/events.jsonl") && said.contains("File too large"), "{said}");
    assert!(said.contains("its last checkpoint is r/checkpoint-"), "{said}");
    assert!(!run.join("summary.json").exists());
    let resumed = upwash(folder.path(), &["train", "run.toml", "--out", "r", "--resume"]);
    let said = String::from_utf8_lossy(&resumed.stderr);
    assert!(resumed.status.success() && !said.contains("damaged"), "{said}");
    assert_eq!(outcome(&run)["rounds"].as_u64(), Some(4800));
}

#[test]
fn diverged_run_keeps_its_models() {
    let folder = folder_with(
        "[algorithm]\nvariant = \"written\"\n[training]\nlearning_rate = 0.4\nmomentum = 0.0\nepochs = 200\n",
    );
    let output = upwash(folder.path(), &["train", "run.toml", "--out", "r"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("diverged: the loss of worker "), "{text}");
    let run = folder.path().join("r");
    assert_eq!(outcome(&run)["status"], "diverged");
    assert!(outcome(&run)["worker"].is_u64() && outcome(&run)["round"].is_u64());
    assert!(run.join("diverged.upwash").is_file());
}

/// The models diverge in the last step, after which no loss is computed.
#[test]
fn divergence_in_the_last_round_is_detected() {
    let folder = folder_with("[training]\nepochs = 1\nbatch_size = 1000\nlearning_rate = 1e39\n");
    let output = upwash(folder.path(), &["train", "run.toml", "--out", "r"]);
    assert_eq!(output.status.code(), Some(3));
    let summary = outcome(&folder.path().join("r"));
    assert_eq!((&summary["status"], &summary["round"]), (&"diverged".into(), &1.into()));
    assert!(summary["per_worker"][0]["train_loss"].as_f64().unwrap() > 1.0);
}

#[test]
fn failed_resumes_name_a_working_remedy() {
    let folder = folder_with("[training]\nepochs = 2\ncheckpoint_every = 0\n");
    said(folder.path(), &["train", "run.toml", "--out", "r"]);
    let resume = ["train", "run.toml", "--out", "r", "--resume"];
    let again = error(folder.path(), &["train", "run.toml", "--out", "r"]);
    assert!(again.contains("r holds a run already: remove it, or choose"), "{again}");
    std::fs::remove_file(folder.path().join("r/summary.json")).unwrap(); // as after a crash
    let nothing = error(folder.path(), &resume);
    assert!(nothing.contains("no checkpoint to resume from: remove it"), "{nothing}");

    std::fs::create_dir(folder.path().join("mine")).unwrap();
    std::fs::write(folder.path().join("mine/config.toml"), "# my notes\n").unwrap();
    let mine = error(folder.path(), &["train", "mine/config.toml", "--out", "mine"]);
    assert!(mine.contains("already has a config.toml"), "{mine}");
}

#[test]
fn run_is_not_resumed_on_another_graph_of_the_same_name() {
    let folder = folder_with("[graph]\ntopology = \"file:g.txt\"\n[training]\nepochs = 2\ncheckpoint_every = 5\n");
    std::fs::write(folder.path().join("g.txt"), "0 1\n1 2\n2 3\n").unwrap();
    said(folder.path(), &["train", "run.toml", "--out", "r"]);
    std::fs::remove_file(folder.path().join("r/summary.json")).unwrap();
    // The resolved configuration can be used from any folder.
    said(folder.path(), &["train", "r/config.toml", "--out", "r", "--resume"]);
    std::fs::remove_file(folder.path().join("r/summary.json")).unwrap();
    std::fs::write(folder.path().join("g.txt"), "0 1\n1 2\n2 3\n0 3\n").unwrap();
    let other = error(folder.path(), &["train", "run.toml", "--out", "r", "--resume"]);
    assert!(other.contains("the graph, the model file or the data set has other content"), "{other}");

    // The same links in other matchings: different links are up in a round.
    let run = "[graph]\ntopology = \"matchings:m.txt\"\nlinks = \"alternating\"\n[training]\nepochs = 2\n\
               checkpoint_every = 5\n";
    std::fs::write(folder.path().join("run.toml"), run).unwrap();
    std::fs::write(folder.path().join("m.txt"), "0-1 2-3\n1-2\n").unwrap();
    said(folder.path(), &["train", "run.toml", "--out", "m"]);
    std::fs::remove_file(folder.path().join("m/summary.json")).unwrap();
    std::fs::write(folder.path().join("m.txt"), "1-2\n0-1 2-3\n").unwrap();
    let resume = ["train", "run.toml", "--out", "m", "--resume"];
    let other = error(folder.path(), &resume);
    assert!(other.contains("the graph, the model file or the data set has other content"), "{other}");
}

#[test]
fn network_from_a_file_is_trained_and_kept_with_the_run() {
    let folder = folder_with("model = \"file:net.toml\"\n[training]\nepochs = 3\ncheckpoint_every = 5\n");
    let net = "layers = [{ type = 'conv', outputs = 4, size = 5, padding = 0 }, { type = 'layer-norm' }, \
               { type = 'gelu' }, { type = 'linear' }]\n";
    std::fs::write(folder.path().join("net.toml"), net).unwrap();
    said(folder.path(), &["train", "run.toml", "--out", "r"]);
    let summary = Summary::read(&folder.path().join("r")).unwrap().unwrap();
    assert!(summary.mean_accuracy > 0.8, "{}", summary.mean_accuracy);
    std::fs::remove_file(folder.path().join("r/summary.json")).unwrap();
    // The copy in the directory is enough.
    std::fs::remove_file(folder.path().join("net.toml")).unwrap();
    said(folder.path(), &["train", "r/config.toml", "--out", "r", "--resume"]);
    let missing = error(folder.path(), &["train", "run.toml", "--out", "s"]);
    assert!(missing.contains("net.toml: cannot read the file"), "{missing}");
    // Another network under the same name is another run.
    std::fs::remove_file(folder.path().join("r/summary.json")).unwrap();
    std::fs::write(folder.path().join("net.toml"), net.replace("gelu", "tanh")).unwrap();
    let other = error(folder.path(), &["train", "run.toml", "--out", "r", "--resume"]);
    assert!(other.contains("the graph, the model file or the data set has other content"), "{other}");
    std::fs::write(folder.path().join("net.toml"), "layers = [{ type = 'dense' }]\n").unwrap();
    let unknown = error(folder.path(), &["train", "run.toml", "--out", "s"]);
    assert!(unknown.contains("net.toml") && unknown.contains("unknown type `dense`"), "{unknown}");
    assert!(!folder.path().join("s").exists());
}

/// Ctrl-C stops a long run with a checkpoint. The helpers time out after a minute.
#[cfg(unix)]
#[test]
fn interrupted_run_can_be_resumed() {
    let folder = folder_with("[training]\nepochs = 1000000\ntest_every = 1000000\ncheckpoint_every = 5\n");
    let run = folder.path().join("r");
    let has_begun = || {
        let events = std::fs::read_to_string(run.join("events.jsonl"));
        if !events.is_ok_and(|text| text.contains("epoch")) {
            return false;
        }
        let twice = ["train", "run.toml", "--out", "r", "--resume"];
        let twice = error(folder.path(), &twice);
        assert!(twice.contains("a run is writing to r"), "{twice}");
        true
    };
    let train = ["train", "run.toml", "--out", "r"];
    let stopped = interrupted(folder.path(), &train, has_begun);
    assert_eq!(stopped.status.code(), Some(130));
    let stopped = outcome(&run);
    assert_eq!(stopped["status"], "interrupted");
    assert!(stopped["per_worker"][0]["train_loss"].as_f64().unwrap() > 0.0);
    assert!(stopped["mean_accuracy"].is_null(), "there was no evaluation");
    let round = stopped["rounds"].as_u64().unwrap();
    let newest = run.join(format!("checkpoint-{round:09}.upwash"));
    assert!(newest.is_file());
    // Resuming removes the old summary and adds to the earlier wall-clock time, even if that summary is missing.
    let before = summary(&run)["wall_seconds"].as_f64().unwrap();
    std::fs::write(run.join(".unfinished-x"), "half").unwrap();
    let events = || std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let starts = |text: String| text.matches("\"event\":\"started\"").count();
    let resume = ["train", "run.toml", "--out", "r", "--resume"];
    let goes_on = || {
        let on = starts(events()) == 2;
        assert!(!on || !run.join("summary.json").exists());
        on
    };
    interrupted(folder.path(), &resume, goes_on);
    assert!(summary(&run)["wall_seconds"].as_f64().unwrap() > before);
    assert!(!run.join(".unfinished-x").exists());
    std::fs::remove_file(run.join("summary.json")).unwrap();
    interrupted(folder.path(), &resume, || starts(events()) == 3);
    assert!(summary(&run)["wall_seconds"].as_f64().unwrap() > before);
}

/// The model file is identical to that of an uninterrupted run.
#[cfg(unix)]
#[test]
fn resumed_run_equals_uninterrupted_run() {
    let config = "model = \"cnn\"\n[graph]\ncopies = 3\n[algorithm]\nbase = \"matcha\"\n[training]\n\
                  epochs = 15\ncheckpoint_every = 0\ndecay = \"cosine\"\n";
    let folder = folder_with(config);
    said(folder.path(), &["train", "run.toml", "--out", "whole"]);
    let part = folder.path().join("part");
    let has_begun = || {
        let events = std::fs::read_to_string(part.join("events.jsonl"));
        events.is_ok_and(|text| text.contains("\"epoch\":1"))
    };
    let train = ["train", "run.toml", "--out", "part"];
    let stopped = interrupted(folder.path(), &train, has_begun).status;
    assert_eq!(stopped.code(), Some(130), "the run finished before the interrupt: make it longer");
    said(folder.path(), &["train", "run.toml", "--out", "part", "--resume"]);
    let whole = folder.path().join("whole");
    assert_eq!(outcome(&part), outcome(&whole));
    let model = |run: &Path| std::fs::read(run.join("model.safetensors")).unwrap();
    assert!(model(&part) == model(&whole));
    let rounds = |run: &Path| {
        let text = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
        let rounds = text.lines().filter(|line| line.contains("\"event\":\"round\""));
        rounds.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(rounds(&part), rounds(&whole));
}

/// Uses made-up CIFAR-100 files of the official length.
#[test]
fn data_is_installed_from_files_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("mine");
    std::fs::create_dir(&from).unwrap();
    let record = |fine: u8| [vec![fine / 5, fine], vec![fine; 3072]].concat();
    let write = |name: &str, images: usize| {
        let content: Vec<u8> = (0..images).flat_map(|i| record((i % 100) as u8)).collect();
        std::fs::write(from.join(name), content).unwrap();
    };
    write("test.bin", 10_000);
    let get = ["data", "get", "cifar100", "--from", "mine"];
    let missing = error(folder.path(), &get);
    assert!(missing.contains("neither train.bin nor train.bin.gz is in mine"), "{missing}");
    write("train.bin", 49_999);
    let short = error(folder.path(), &get);
    assert!(short.contains("153696926 bytes, not 153700000"), "{short}");
    let uneven: Vec<u8> = (0..50_000).flat_map(|i| record((i % 99) as u8)).collect();
    std::fs::write(from.join("train.bin"), uneven).unwrap();
    let uneven = error(folder.path(), &get);
    assert!(uneven.contains("train.bin: 506 images have the label 0, not 500"), "{uneven}");
    write("train.bin", 50_000);
    let zipped = Command::new("gzip").arg("-1").arg(from.join("test.bin")).status();
    assert!(zipped.unwrap().success());
    assert!(said(folder.path(), &get).contains("cifar100 is installed in"));
    assert!(said(folder.path(), &get).contains("already installed"));
    let list = said(folder.path(), &["data", "list"]);
    let installed = |name: &str| list.lines().any(|line| line.split_whitespace().take(2).eq([name, "installed"]));
    assert!(installed("cifar100") && installed("digits") && !installed("mnist"), "{list}");

    std::fs::write(
        folder.path().join("run.toml"),
        "model = \"softmax\"\n[data]\nname = \"cifar100\"\n[training]\nepochs = 1\nbatch_size = 6250\n",
    )
    .unwrap();
    let text = said(folder.path(), &["train", "run.toml", "--out", "r"]);
    assert!(text.contains("cifar100: 50000 images"), "{text}");
    // A label without a class, in a file of the correct length.
    let stored = folder.path().join("data/cifar100/train.bin");
    let mut bytes = std::fs::read(&stored).unwrap();
    bytes[1] = 100;
    std::fs::write(&stored, bytes).unwrap();
    let label = error(folder.path(), &["train", "run.toml", "--out", "r2"]);
    assert!(label.contains("label 100 is out of range for 100 classes"), "{label}");
    assert!(said(folder.path(), &["data", "get", "digits"]).contains("part of the program"));
    let unknown = error(folder.path(), &["data", "get", "imagenet"]);
    assert!(unknown.contains("data `imagenet` is unknown"), "{unknown}");
    let nowhere = error(folder.path(), &["data", "get", "cifar10", "--from", "nowhere"]);
    assert!(nowhere.contains("--from nowhere: this is not a folder"), "{nowhere}");
    std::fs::create_dir(folder.path().join("hollow")).unwrap();
    let hollow = error(folder.path(), &["data", "get", "cifar10", "--from", "hollow"]);
    assert!(hollow.contains("neither data_batch_1.bin nor data_batch_1.bin.gz is in hollow"), "{hollow}");
}

#[test]
fn dry_run_describes_the_run_and_writes_nothing() {
    let folder = folder_with("model = \"resnet20\"\n[data]\nname = \"synthetic:shape=3x32x32\"\n");
    let text = said(folder.path(), &["train", "run.toml", "--dry-run"]);
    assert!(text.contains("8 workers of 27"), "{text}");
    assert!(text.contains("MiB of memory"), "{text}");
    assert!(!folder.path().join("runs").exists());
}

#[test]
fn every_algorithm_is_listed_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(folder.path(), &["algorithms"]);
    for (name, said) in [
        ("al-dsgd", "w_best = 0.1"),
        ("gradient-tracking", "2 messages to each neighbor, 2 state vectors"),
        ("choco", "compressed, 1 state vector"),
        ("sgp", "directed links"),
        ("easgd", "with a server"),
        ("gosgd", "asynchronous, 1 message, one way"),
        ("downpour", "staleness = 8"),
    ] {
        let at = text.find(&format!("\n{name}\n")).or(text.starts_with(name).then_some(0));
        let rest = &text[at.unwrap_or_else(|| panic!("no {name} in {text}"))..];
        let entry = flat(rest.split("\n\n").next().unwrap());
        assert!(entry.contains(said), "{entry}");
    }
    let one = said(folder.path(), &["algorithms", "d2"]);
    assert!(one.starts_with("d2\n") && !one.contains("choco"), "{one}");
    assert!(error(folder.path(), &["algorithms", "d3"]).contains("unknown algorithm `d3`"));
}
