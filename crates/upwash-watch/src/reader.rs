//! Polls a run's folder and notifies the connections about changes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use upwash::run::ControlRequest;
use upwash_report::{Follower, LiveStatus, ReadError, Viewer};

/// How often the folder is read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The time over which the pace is measured.
const PACE_WINDOW: Duration = Duration::from_secs(20);
/// How long a run may write nothing before the page reports it as silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// The reader of a run's folder.
pub(crate) struct Reader {
    follower: Arc<Mutex<Follower>>,
}

/// The run as read so far, with notifications about changes. Each connection has its own clone.
#[derive(Clone)]
pub(crate) struct RunUpdates {
    follower: Arc<Mutex<Follower>>,
    live_status: watch::Receiver<(u64, LiveStatus)>,
    last: Arc<Mutex<Option<SharedMessage>>>,
}

/// The last message, for all viewers that are where its viewer was.
struct SharedMessage {
    /// The change that it reports.
    change: u64,
    before: Viewer,
    after: Viewer,
    name: &'static str,
    content: String,
}

impl Reader {
    pub(crate) fn open(folder: &Path) -> Result<Self, ReadError> {
        let mut follower = Follower::open(folder)?.with_thinned_epochs();
        follower.read()?;
        Ok(Self { follower: Arc::new(Mutex::new(follower)) })
    }

    /// Polls on a new thread until `stop` is set, and reads once more after that.
    pub(crate) fn follow(self, stop: Arc<AtomicBool>) -> (RunUpdates, JoinHandle<()>) {
        let (sender, live_status) = watch::channel((0, LiveStatus::default()));
        let updates = RunUpdates { follower: self.follower.clone(), live_status, last: Arc::default() };
        let reading = std::thread::spawn(move || {
            let mut pace = Pace::default();
            loop {
                let last = stop.load(Ordering::Relaxed);
                let mut follower = lock(&self.follower);
                // A file that cannot be read now may be readable the next time.
                let changed = follower.read().unwrap_or(false);
                let live_status = pace.measure(&follower, changed);
                drop(follower);
                // A change of the pace alone is not worth a message.
                let (number, before) = *sender.borrow();
                let same = LiveStatus { pace: None, ..live_status } == LiveStatus { pace: None, ..before };
                if changed || !same {
                    sender.send_replace((number + 1, live_status));
                }
                if last {
                    return;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        });
        (updates, reading)
    }
}

impl RunUpdates {
    /// Waits for a change; `None` when the reader has stopped.
    pub(crate) async fn wait(&mut self) -> Option<()> {
        self.live_status.changed().await.ok()
    }

    pub(crate) async fn ended(mut self) {
        while self.wait().await.is_some() {}
    }

    /// The next message for a viewer.
    pub(crate) fn next_message(&self, viewer: &mut Viewer) -> (&'static str, String) {
        let (change, live_status) = *self.live_status.borrow();
        // Viewers that have seen the same get the same: it is formatted once, however many there are.
        let mut last = lock(&self.last);
        match &*last {
            Some(last) if last.change == change && last.before == *viewer => {
                *viewer = last.after.clone();
                (last.name, last.content.clone())
            }
            _ => {
                let before = viewer.clone();
                let (name, content) = viewer.next(&lock(&self.follower), live_status);
                *last = Some(SharedMessage { change, before, after: viewer.clone(), name, content: content.clone() });
                (name, content)
            }
        }
    }

    pub(crate) fn name(&self) -> String {
        lock(&self.follower).run().name.clone()
    }

    /// Leaves a control request for all processes of the run. The error is shown to the user.
    pub(crate) fn request(&self, request: ControlRequest) -> Result<(), String> {
        let (folders, processes, ended) = {
            let follower = lock(&self.follower);
            let run = follower.run();
            (control_folders(&follower), run.processes, run.ending.is_some())
        };
        if ended || folders.is_empty() {
            return Err("The run has already ended.".into());
        }
        if processes > 1 && request != ControlRequest::Stop {
            return Err("A run of several processes can only be stopped, not paused or checkpointed.".into());
        }
        for folder in folders {
            let left = request.leave(&folder);
            left.map_err(|error| {
                let cause = error.kind();
                format!("The run's folder {} cannot be written to: {cause}.", folder.display())
            })?;
        }
        Ok(())
    }
}

/// The folders in which the running processes look for control requests.
fn control_folders(follower: &Follower) -> Vec<PathBuf> {
    follower.running_folders().map(PathBuf::from).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Measures how fast a run progresses.
#[derive(Default)]
struct Pace {
    /// When each number of completed rounds was first seen.
    rounds: VecDeque<(Instant, u64)>,
    restarts: u64,
    /// When the run last wrote events.
    last_change: Option<Instant>,
}

impl Pace {
    fn measure(&mut self, follower: &Follower, changed: bool) -> LiveStatus {
        let (run, now) = (follower.run(), Instant::now());
        if self.last_change.is_none() {
            // The run may have been silent before this server started.
            let age = follower.modified().and_then(|time| time.elapsed().ok());
            self.last_change = now.checked_sub(age.unwrap_or_default()).or(Some(now));
        } else if changed {
            self.last_change = Some(now);
        }
        let idle = run.now.paused || run.ending.is_some();
        if idle || self.restarts != follower.restarts() {
            self.restarts = follower.restarts();
            self.rounds.clear();
        }
        if !idle && self.rounds.back().is_none_or(|last| last.1 != run.rounds_run) {
            self.rounds.push_back((now, run.rounds_run));
        }
        // Measuring takes two entries, however old they are.
        while self.rounds.len() > 2 && now - self.rounds[1].0 > PACE_WINDOW {
            self.rounds.pop_front();
        }
        let pace_until = |time: Instant| match (self.rounds.front(), self.rounds.back()) {
            (Some(first), Some(last)) if last.1 > first.1 => {
                Some((last.1 - first.1) as f64 / (time - first.0).as_secs_f64())
            }
            _ => None,
        };
        // The displayed pace is measured until now, so it drops while the run stalls. The limit for silence depends on
        // the pace at the last change: ten rounds, or SILENCE_LIMIT if that is longer.
        let pace = pace_until(now);
        let pace_before = self.rounds.back().and_then(|last| pace_until(last.0));
        let ten_rounds = pace_before.map_or(0.0, |pace| 10.0 / pace);
        let limit = SILENCE_LIMIT.max(Duration::try_from_secs_f64(ten_rounds).unwrap_or(SILENCE_LIMIT));
        let silent = !idle && self.last_change.is_some_and(|time| now - time > limit);
        LiveStatus {
            pace: pace.filter(|_| !silent),
            waiting: control_folders(follower).iter().any(|folder| ControlRequest::is_waiting(folder)),
            silent,
            cut: silent && follower.has_partial_line(),
        }
    }
}
