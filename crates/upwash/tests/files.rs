//! Run directories that somebody else prepared: links, pipes and damaged files.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;
use std::path::Path;
use upwash::run::{ControlRequest, RunDirectory, RunLocation, Summary, directory};
use upwash::{Config, Event, Trainer};
use upwash_testkit::Quadratic;

fn config() -> Config {
    let text = "[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 2\ncheckpoint_every = 10\n";
    Config::parse(text, &[]).unwrap()
}

fn trainer<'a>(folder: &Path) -> Trainer<'a> {
    Trainer::new(config()).model(Quadratic::new(64)).output(folder)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A checkpoint that fails because of one of these is written again later; others end the run.
#[test]
fn only_errors_that_may_pass_by_themselves_are_transient() {
    use rustix::io::Errno;
    let is_transient = |errno: &Errno| {
        let error = std::io::Error::from_raw_os_error(errno.raw_os_error());
        upwash::files::is_transient(&error)
    };
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE] {
        assert!(is_transient(&errno), "{errno}");
    }
    for errno in [Errno::IO, Errno::ACCESS, Errno::PERM, Errno::NOENT, Errno::ROFS, Errno::NOTDIR, Errno::LOOP] {
        assert!(!is_transient(&errno), "{errno}");
    }
    // Errors of this program have no number.
    let own = |kind| upwash::files::is_transient(&std::io::Error::new(kind, "own"));
    assert!(own(std::io::ErrorKind::StorageFull) && !own(std::io::ErrorKind::InvalidData));
}

#[test]
fn requests_do_not_follow_links() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, run) = (folder.path().join("precious"), folder.path().join("run"));
    std::fs::create_dir(&run).unwrap();
    std::fs::write(&outside, "content").unwrap();
    symlink(&outside, run.join("control-stop")).unwrap();
    symlink(folder.path().join("new"), run.join("control-pause")).unwrap();
    for request in [ControlRequest::Stop, ControlRequest::Pause] {
        let error = request.leave(&run).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "content");
    assert!(!folder.path().join("new").exists());
    // A request that is left twice is one request.
    ControlRequest::Checkpoint.leave(&run).unwrap();
    ControlRequest::Checkpoint.leave(&run).unwrap();
    assert_eq!(ControlRequest::take(&run), Some(ControlRequest::Checkpoint));
}

#[test]
fn results_replace_links_and_do_not_follow_them() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, run) = (folder.path().join("precious"), folder.path().join("run"));
    std::fs::create_dir(&run).unwrap();
    std::fs::write(&outside, "content").unwrap();
    let written = ["summary.json", "model.safetensors", "checkpoint-000000010.upwash"];
    written.iter().for_each(|name| symlink(&outside, run.join(name)).unwrap());
    trainer(&run).run().unwrap();
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "content");
    assert!(Summary::read(&run).unwrap().is_some());
    // A log of events that is a link is not written to when the run is resumed.
    std::fs::remove_file(run.join("summary.json")).unwrap();
    std::fs::rename(run.join("events.jsonl"), folder.path().join("events")).unwrap();
    symlink(folder.path().join("events"), run.join("events.jsonl")).unwrap();
    let error = trainer(&run).resume(true).run().unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}

/// Neither a pipe nor a file of another kind keeps a reader waiting, and no reader takes a huge file into memory.
#[test]
fn only_regular_files_of_a_plausible_size_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = std::process::Command::new("mkfifo").arg(path("summary.json")).status().unwrap();
    assert!(made.success());
    let error = Summary::read(folder.path()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let sparse = std::fs::File::create(path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let error = upwash::files::read_text(&path("sparse")).unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[test]
fn damaged_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    trainer(&run).run().unwrap();
    std::fs::remove_file(run.join("summary.json")).unwrap();
    let checkpoints: Vec<String> = names(&run).into_iter().filter(|name| name.starts_with("checkpoint-")).collect();
    assert_eq!(checkpoints.len(), 2);
    for name in &checkpoints {
        std::fs::File::create(run.join(name)).unwrap().set_len(1 << 40).unwrap();
    }
    // As for peers: without an intact checkpoint the run starts over, and the damaged files stay.
    let warnings = std::cell::RefCell::new(Vec::new());
    let observed = |event: &Event| {
        if let Event::Warning { message } = event {
            warnings.borrow_mut().push(message.clone());
        }
    };
    trainer(&run).resume(true).observe(observed).run().unwrap();
    let warnings = warnings.into_inner();
    assert!(
        warnings.len() == 2 && warnings[0].contains("is damaged (not a checkpoint); it is kept as"),
        "{warnings:?}"
    );
    for name in checkpoints {
        assert_eq!(std::fs::metadata(run.join(format!("damaged-{name}"))).unwrap().len(), 1 << 40);
    }
}

#[test]
fn a_run_is_running_while_its_directory_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = upwash::experiment::Experiment::prepare(config(), &Default::default()).unwrap();
    let open = RunDirectory::create(folder.path(), &experiment, &RunLocation::local(&experiment)).unwrap();
    assert!(directory::is_running(folder.path()));
    drop(open);
    assert!(!directory::is_running(folder.path()));
}
