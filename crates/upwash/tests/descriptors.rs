//! A run whose checkpoint meets a lack of file descriptors. Alone in its process, since it uses all of them.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::Path;
use upwash::{Config, Event, Status, Trainer};
use upwash_testkit::Quadratic;

fn checkpoints(run: &Path) -> usize {
    let entries = std::fs::read_dir(run).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with("checkpoint-")).count()
}

#[test]
fn a_checkpoint_waits_for_file_descriptors() {
    let text = "[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 1000000\ncheckpoint_every = 10\n";
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let (taken, failures, seen) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()), Cell::new(0));
    let trainer = Trainer::new(Config::parse(text, &[]).unwrap()).model(Quadratic::new(64)).output(&run);
    let stop = trainer.stop_handle();
    let summary = trainer
        .observe(|event| match event {
            Event::Round { round: 14, .. } => {
                seen.set(checkpoints(&run));
                // All that the system gives.
                taken.borrow_mut().extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
            }
            Event::Warning { message } => {
                failures.borrow_mut().push(message.clone());
                taken.borrow_mut().clear();
            }
            Event::Round { .. } if !failures.borrow().is_empty() && checkpoints(&run) > seen.get() => stop.stop(),
            _ => {}
        })
        .run()
        .unwrap();
    assert!(matches!(summary.status, Status::Interrupted { .. }));
    let failures = failures.into_inner();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(
        failures[0].contains("no checkpoint before round 20") && failures[0].contains("open files"),
        "{failures:?}"
    );
    // The warning is among the events.
    assert!(std::fs::read_to_string(run.join("events.jsonl")).unwrap().contains("no checkpoint before round 20"));
}
