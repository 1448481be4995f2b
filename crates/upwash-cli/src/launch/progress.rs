//! Lines about the progress of all peers, from the files that they write.

use crate::output::note;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use upwash_report::{Epoch, Follower, Run};

/// After this time without a completed epoch, the round is shown.
const QUIET_INTERVAL: Duration = Duration::from_secs(30);

/// Follows the folders of the peers.
pub(super) struct Progress {
    out: PathBuf,
    /// `None` until a peer has written events.
    follower: Option<Follower>,
    /// The last epoch that was shown.
    epoch: u64,
    shown: Instant,
}

impl Progress {
    pub(super) fn new(out: &Path) -> Self {
        Self { out: out.to_owned(), follower: None, epoch: 0, shown: Instant::now() }
    }

    /// Prints a line if all peers that are not lost have completed another epoch, or after a long time without one.
    pub(super) fn show(&mut self, is_lost: impl Fn(usize) -> bool) {
        if self.follower.is_none() {
            self.follower = Follower::open(&self.out).ok();
        }
        let Some(follower) = &mut self.follower else {
            return;
        };
        // What cannot be read now may be readable the next time.
        let _ = follower.read();
        let run = follower.run();
        let trains = |worker: &usize| Some(*worker) != run.server;
        let awaited: Vec<usize> = (0..run.workers).filter(trains).filter(|worker| !is_lost(*worker)).collect();
        let is_complete = |epoch: &&Epoch| {
            let has_loss = |worker: &usize| epoch.losses.get(*worker).is_some_and(Option::is_some);
            !awaited.is_empty() && awaited.iter().all(has_loss)
        };
        let newest = run.epochs.iter().rev().take_while(|epoch| epoch.epoch > self.epoch).find(is_complete);
        if let Some(epoch) = newest {
            self.epoch = epoch.epoch;
            self.shown = Instant::now();
            note!("{}", epoch_line(run, epoch));
        } else if self.shown.elapsed() > QUIET_INTERVAL {
            self.shown = Instant::now();
            note!("round {} of {}", run.rounds_run, run.rounds);
        }
    }
}

/// The means over the workers that have completed an epoch.
fn epoch_line(run: &Run, epoch: &Epoch) -> String {
    let trains = |worker: usize| Some(worker) != run.server;
    let known = |values: &[Option<f64>]| -> Vec<f64> {
        let workers = values.iter().enumerate().filter(|(worker, _)| trains(*worker));
        workers.filter_map(|(_, value)| *value).collect()
    };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let losses = known(&epoch.losses);
    let accuracies = known(epoch.accuracies.as_deref().unwrap_or_default());
    let tested = match accuracies.is_empty() {
        true => String::new(),
        false => format!(", test accuracy {:.2} %", 100.0 * mean(&accuracies)),
    };
    let all = (0..run.workers).filter(|worker| trains(*worker)).count();
    let part = match losses.len() == all {
        true => String::new(),
        false => format!(" ({} of {all} workers)", losses.len()),
    };
    let epochs = run.rounds.div_ceil(run.rounds_per_epoch.max(1));
    format!("epoch {} of {epochs}: train loss {:.4}{tested}{part}", epoch.epoch, mean(&losses))
}
