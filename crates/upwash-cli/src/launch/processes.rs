//! The peer processes of a launch: starts them, watches them, and says at once when one ends.

use super::keys::Keys;
use super::progress::Progress;
use super::{log_file, peer_folder};
use crate::files;
use crate::output::{note, tell};
use crate::runs::{DIVERGED, INTERRUPTED, interrupted};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use upwash::run::{ControlRequest, directory};

/// How often the processes are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often the folder is searched for restarted peers and for progress.
const FOLDER_INTERVAL: Duration = Duration::from_secs(1);
/// How long a process may take to end after an error in this one.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// How a worker's part of the run has gone.
pub(super) enum Outcome {
    /// It had ended before this launch.
    Earlier,
    /// Its process has exited.
    Exited(ExitStatus),
    /// Its process was lost, and another one took over.
    Restarted,
}

/// What to start.
pub(super) struct Launch<'a> {
    pub(super) program: PathBuf,
    pub(super) out: &'a Path,
    pub(super) config: PathBuf,
    pub(super) keys: &'a Keys,
}

impl Launch<'_> {
    /// The arguments with which a worker's peer is started, here or by the user.
    fn arguments(&self, worker: usize) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let id = worker.to_string();
        let [key, out] = [self.keys.file(worker), peer_folder(self.out, worker)].map(|found| path(&found));
        let arguments = ["peer", &path(&self.config), "--id", &id, "--threads", "1", "--key", &key, "--out", &out];
        arguments.map(str::to_owned).into()
    }

    fn start(&self, worker: usize) -> Result<Child> {
        let log = files::create(&log_file(self.out, worker))?;
        Command::new(&self.program)
            .args(self.arguments(worker))
            .arg("--until-stdin-closes")
            // If this process is killed, the system closes the pipe, and the peer stops with a checkpoint.
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))
    }

    /// The command that starts a worker's peer again.
    fn restart_command(&self, worker: usize) -> String {
        let words = [self.program.display().to_string()].into_iter().chain(self.arguments(worker));
        words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
    }
}

/// A word of a command for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// One worker's process.
struct Peer {
    /// `None` if the worker had ended before this launch.
    child: Option<Child>,
    /// Set when its end was reported.
    status: Option<ExitStatus>,
    /// Whether another process has taken over.
    is_restarted: bool,
}

impl Peer {
    /// Whether the process ended without a result, so that the user may start another one.
    fn is_lost(&self) -> bool {
        let with_result = [0, DIVERGED, INTERRUPTED].map(|code| Some(i32::from(code)));
        self.status.is_some_and(|status| !with_result.contains(&status.code()))
    }
}

/// The processes of all workers. Dropping it ends those that still run.
pub(super) struct Processes<'a> {
    launch: &'a Launch<'a>,
    peers: Vec<Peer>,
}

impl<'a> Processes<'a> {
    /// Starts a process for every worker whose part has not ended.
    pub(super) fn start(launch: &'a Launch<'a>, has_ended: &[bool]) -> Result<Self> {
        let mut processes = Self { launch, peers: Vec::new() };
        for (worker, ended) in has_ended.iter().enumerate() {
            let child = if *ended { None } else { Some(launch.start(worker)?) };
            processes.peers.push(Peer { child, status: None, is_restarted: false });
        }
        Ok(processes)
    }

    /// The identifiers of the processes.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.peers.iter().filter_map(|peer| Some(peer.child.as_ref()?.id())).collect()
    }

    /// Waits for all processes, those that the user restarted included, and says what happens. An interrupt of this
    /// process is passed on, since only a terminal signals the whole process group.
    pub(super) fn wait(mut self, mut progress: Progress) -> Result<Vec<Outcome>> {
        let (mut signaled, mut looked) = (false, Instant::now());
        loop {
            let mut is_running = self.poll()?;
            if interrupted() && !std::mem::replace(&mut signaled, true) {
                self.terminate();
            }
            if !is_running || looked.elapsed() >= FOLDER_INTERVAL {
                looked = Instant::now();
                for worker in 0..self.peers.len() {
                    is_running |= self.look_for_restart(worker, signaled);
                }
                let lost = |worker: usize| self.peers[worker].is_lost() && !self.peers[worker].is_restarted;
                progress.show(lost);
            }
            if !is_running {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let outcome = |peer: &Peer| match (peer.status, peer.is_restarted) {
            (_, true) => Outcome::Restarted,
            (Some(status), _) => Outcome::Exited(status),
            (None, _) => Outcome::Earlier,
        };
        Ok(self.peers.iter().map(outcome).collect())
    }

    /// Whether any process is running. Reports the end of each, once.
    fn poll(&mut self) -> Result<bool> {
        let (mut ended, mut is_running) = (vec![], false);
        for (worker, peer) in self.peers.iter_mut().enumerate() {
            let Some(child) = peer.child.as_mut().filter(|_| peer.status.is_none()) else {
                continue;
            };
            peer.status = child.try_wait()?;
            match peer.status {
                Some(status) => ended.push((worker, status)),
                None => is_running = true,
            }
        }
        for (worker, status) in ended {
            self.report(worker, status, is_running);
        }
        Ok(is_running)
    }

    /// Says how a process has ended, and how to start it again.
    fn report(&self, worker: usize, status: ExitStatus, others_are_running: bool) {
        let how = match status.code() {
            Some(0) => return note!("peer {worker} has finished"),
            Some(code) if code == i32::from(DIVERGED) => "has diverged".into(),
            Some(code) if code == i32::from(INTERRUPTED) => "has stopped, with a checkpoint".into(),
            Some(code) => format!("has failed (exit code {code}): {}", self.last_line(worker)),
            None => format!("was killed{}", signal(status)),
        };
        let remedy = match (self.peers[worker].is_lost() && !interrupted(), others_are_running) {
            (false, _) => String::new(),
            (true, true) => format!("; restart it with:\n  {}", self.launch.restart_command(worker)),
            // This launch ends, and its keys are removed.
            (true, false) => "; to continue the run, launch it again".into(),
        };
        tell!("peer {worker} {how}{remedy}");
    }

    /// The last line of a worker's log: the error, if there was one.
    fn last_line(&self, worker: usize) -> String {
        let file = log_file(self.launch.out, worker);
        let text = upwash::files::read_text(&file).unwrap_or_default();
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        line.map_or(format!("see {}", file.display()), |line| line.trim_start_matches("error: ").to_owned())
    }

    /// Whether the user has restarted a worker that was lost, and it is running. Passes on a request to stop.
    fn look_for_restart(&mut self, worker: usize, stop: bool) -> bool {
        let folder = peer_folder(self.launch.out, worker);
        if !self.peers[worker].is_lost() || !directory::is_running(&folder) {
            return false;
        }
        if !std::mem::replace(&mut self.peers[worker].is_restarted, true) {
            tell!("peer {worker} is running again");
        }
        if stop && !ControlRequest::is_waiting(&folder) {
            let _ = ControlRequest::Stop.leave(&folder);
        }
        true
    }

    /// Sends SIGTERM to the processes that are still running. They write a checkpoint before they exit.
    fn terminate(&mut self) {
        let children = self.peers.iter_mut().filter_map(|peer| peer.child.as_mut());
        let running = children.filter_map(|child| match child.try_wait() {
            Ok(None) => Some(child.id().to_string()),
            _ => None,
        });
        // One `kill` for all, without delay: the terminal may just have signaled them, and two signals within half a
        // second count as one.
        let running: Vec<String> = running.collect();
        if !running.is_empty() {
            let _ = Command::new("kill").args(running).status();
        }
    }
}

impl Drop for Processes<'_> {
    /// Ends the remaining processes after an error in this one.
    fn drop(&mut self) {
        self.terminate();
        let deadline = Instant::now() + END_TIMEOUT;
        for child in self.peers.iter_mut().filter_map(|peer| peer.child.as_mut()) {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(POLL_INTERVAL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The signal that ended a process.
fn signal(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!(" by signal {signal}");
    }
    let _ = status;
    String::new()
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_with_blanks_are_quoted() {
        assert_eq!(quoted("runs/a-1"), "runs/a-1");
        assert_eq!(quoted("my run"), "'my run'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
