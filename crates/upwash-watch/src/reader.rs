//! Reads a run's folder again and again, and says when there is something new.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use upwash::run::ControlRequest;
use upwash_report::{Follower, LiveStatus, ReadError, Viewer};

/// From one look to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Over how long the pace is measured.
const PACE: Duration = Duration::from_secs(20);
/// How long a run may say nothing before that is said.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Someone who reads.
pub(crate) struct Reader {
    follower: Arc<Mutex<Follower>>,
}

/// What is read, for those who watch.
#[derive(Clone)]
pub(crate) struct RunUpdates {
    follower: Arc<Mutex<Follower>>,
    live_status: watch::Receiver<LiveStatus>,
}

impl Reader {
    pub(crate) fn open(folder: &Path) -> Result<Self, ReadError> {
        let mut follower = Follower::open(folder)?.lean();
        follower.read()?;
        Ok(Self { follower: Arc::new(Mutex::new(follower)) })
    }

    /// Reads on a thread of its own until `stop`, and once more after it.
    pub(crate) fn follow(self, stop: Arc<AtomicBool>) -> (RunUpdates, JoinHandle<()>) {
        let (sender, live_status) = watch::channel(LiveStatus::default());
        let news = RunUpdates { follower: self.follower.clone(), live_status };
        let reading = std::thread::spawn(move || {
            let mut pace = Pace::default();
            loop {
                let last = stop.load(Ordering::Relaxed);
                let mut follower = lock(&self.follower);
                // What cannot be read now may be there the next time.
                let news = follower.read().unwrap_or(false);
                let live_status = pace.measure(&follower, news);
                drop(follower);
                // That a pace sinks is no news.
                let same = LiveStatus { pace: None, ..live_status } == LiveStatus { pace: None, ..*sender.borrow() };
                if news || !same {
                    sender.send_replace(live_status);
                }
                if last {
                    return;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        });
        (news, reading)
    }
}

impl RunUpdates {
    /// Waits for something new; none when nothing more will come.
    pub(crate) async fn wait(&mut self) -> Option<()> {
        self.live_status.changed().await.ok()
    }

    pub(crate) async fn ended(mut self) {
        while self.wait().await.is_some() {}
    }

    /// The next message for someone who watches.
    pub(crate) fn tell(&self, viewer: &mut Viewer) -> (&'static str, String) {
        viewer.next(&lock(&self.follower), *self.live_status.borrow())
    }

    pub(crate) fn name(&self) -> String {
        lock(&self.follower).run().name.clone()
    }

    /// Leaves a request for all processes of the run, or says why not.
    pub(crate) fn request(&self, request: ControlRequest) -> Result<(), String> {
        let (folders, processes, ended) = {
            let follower = lock(&self.follower);
            let run = follower.run();
            (folders(&follower), run.processes, run.ending.is_some())
        };
        if ended || folders.is_empty() {
            return Err("The run has ended.".into());
        }
        if processes > 1 && request != ControlRequest::Stop {
            return Err("A run of several processes can only be stopped.".into());
        }
        for folder in folders {
            let left = request.leave(&folder);
            left.map_err(|error| {
                let why = error.kind();
                format!("The run's folder {} cannot be written to: {why}.", folder.display())
            })?;
        }
        Ok(())
    }
}

/// Where the processes of a run that have not ended look for control requests.
fn folders(follower: &Follower) -> Vec<PathBuf> {
    follower.going_on().map(PathBuf::from).collect()
}

fn lock(follower: &Mutex<Follower>) -> MutexGuard<'_, Follower> {
    follower.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How fast a run goes.
#[derive(Default)]
struct Pace {
    rounds: VecDeque<(Instant, u64)>,
    restarts: u64,
    heard: Option<Instant>,
}

impl Pace {
    fn measure(&mut self, follower: &Follower, news: bool) -> LiveStatus {
        let (run, now) = (follower.run(), Instant::now());
        if self.heard.is_none() {
            // It may have been silent before anyone listened.
            let age = follower.written().and_then(|time| time.elapsed().ok());
            self.heard = now.checked_sub(age.unwrap_or_default()).or(Some(now));
        } else if news {
            self.heard = Some(now);
        }
        let stands = run.now.paused || run.ending.is_some();
        if stands || self.restarts != follower.restarts() {
            self.restarts = follower.restarts();
            self.rounds.clear();
        }
        if !stands && self.rounds.back().is_none_or(|last| last.1 != run.rounds_run) {
            self.rounds.push_back((now, run.rounds_run));
        }
        // Two are needed, however old they are.
        while self.rounds.len() > 2 && now - self.rounds[1].0 > PACE {
            self.rounds.pop_front();
        }
        let over = |time: Instant| match (self.rounds.front(), self.rounds.back()) {
            (Some(first), Some(last)) if last.1 > first.1 => {
                Some((last.1 - first.1) as f64 / (time - first.0).as_secs_f64())
            }
            _ => None,
        };
        // Up to now: who stands still is slow, and slower by the moment. But when it was last heard of, it was not.
        let pace = over(now);
        let slow = self.rounds.back().and_then(|last| over(last.0));
        let slow = slow.map_or(0.0, |pace| 10.0 / pace);
        let patience = SILENCE_LIMIT.max(Duration::try_from_secs_f64(slow).unwrap_or(SILENCE_LIMIT));
        let silent = !stands && self.heard.is_some_and(|heard| now - heard > patience);
        LiveStatus {
            pace: pace.filter(|_| !silent),
            waiting: folders(follower).iter().any(|folder| ControlRequest::is_waiting(folder)),
            silent,
            cut: silent && follower.is_cut(),
        }
    }
}
