//! Progress of a run: a bar on a terminal, and lines for epochs, which also reach logs of jobs without a terminal.

mod line;

use crate::output::{is_quiet, note, tell, warning};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use line::EpochLine;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use upwash::WorkerId;
use upwash::run::{ControlFlow, ControlRequest, Event, Observer};
use upwash::transport::MembershipEvent;

/// Without a terminal, how long nothing may be said during a long epoch.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// Of runs with more epochs than this, epochs that end right after the previous line are left out.
const MANY_EPOCHS: u64 = 100;
/// What "right after" means.
const BETWEEN_LINES: Duration = Duration::from_secs(1);
/// The longest name beside a bar.
const LONGEST_NAME: usize = 24;

/// Observer that shows the progress of a run.
pub struct ProgressDisplay {
    bar: ProgressBar,
    /// Whether to print lines about epochs, or about long silence.
    lines: bool,
    /// The server, which is left out of the statistics.
    server: Option<WorkerId>,
    /// What stands beside the bar: which run of several it is.
    name: String,
    /// How many runs advance in lockstep and share the bar.
    runs: usize,
    /// The first round of this process, all rounds, and all epochs.
    first: u64,
    rounds: u64,
    epochs: u64,
    started: Instant,
    last_line: Instant,
}

impl ProgressDisplay {
    /// Shows a bar on a terminal and, if `lines` is set, lines about epochs, unless `--quiet` is given.
    pub fn new(lines: bool) -> Self {
        let mut display = Self::none();
        if std::io::stderr().is_terminal() && !is_quiet() {
            display.bar = ProgressBar::new(0);
        }
        display.lines = lines && !is_quiet();
        display
    }

    /// The same, with a name beside the bar.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.chars().take(LONGEST_NAME).collect();
        self
    }

    /// One bar for several runs that advance in lockstep, whose epochs get no lines.
    pub fn for_runs(runs: usize) -> Self {
        let mut display = Self::new(true).named(&format!("{runs} runs"));
        display.runs = runs;
        display
    }

    /// A display that shows nothing.
    pub fn none() -> Self {
        let now = Instant::now();
        Self {
            bar: ProgressBar::hidden(),
            lines: false,
            server: None,
            name: String::new(),
            runs: 1,
            first: 0,
            rounds: 0,
            epochs: 0,
            started: now,
            last_line: now,
        }
    }

    fn show(&mut self, event: &Event) {
        match event {
            Event::Started { .. } => self.start(event),
            Event::Graph { .. } | Event::Unknown => {}
            Event::Control { round, request } => {
                let action = match request {
                    ControlRequest::Pause => "paused",
                    ControlRequest::Continue => "continued",
                    ControlRequest::Checkpoint => "checkpoint written",
                    ControlRequest::Stop => "stopping",
                };
                self.bar.suspend(|| tell!("{action} before round {round}, as requested"));
            }
            Event::Warning { message } => self.bar.suspend(|| tell!("{}", warning(message))),
            Event::Peer { round, change } => self.show_peer(*round, change),
            Event::Round { round, .. } => self.show_round(round + 1),
            Event::Epoch { .. } => self.show_epoch(event),
            Event::Ended { .. } => self.bar.finish_and_clear(),
        }
    }

    fn start(&mut self, event: &Event) {
        let Event::Started { rounds, round, rounds_per_epoch, workers, server, batch_size, .. } = event else {
            return;
        };
        self.server = *server;
        (self.first, self.rounds, self.epochs) = (*round, *rounds, rounds / rounds_per_epoch.max(&1));
        self.started = Instant::now();
        self.last_line = self.started;
        let training = workers - usize::from(server.is_some());
        self.bar.set_style(style(self.runs * training * batch_size));
        self.bar.set_length(*rounds);
        self.bar.set_position(*round);
        self.bar.reset_eta();
        if !self.name.is_empty() {
            self.bar.set_prefix(format!("{} ", self.name));
        }
    }

    fn show_peer(&self, round: u64, change: &MembershipEvent) {
        let text = match change {
            MembershipEvent::Joined { worker } => format!("worker {worker} joined"),
            MembershipEvent::Missing { worker, why } => {
                format!("worker {worker} is missing ({why}); continuing without it")
            }
            MembershipEvent::Lost { worker, why } => {
                format!("worker {worker} is lost: {why}")
            }
            MembershipEvent::Refused { what } => format!("refused: {what}"),
            MembershipEvent::MoreRefused { count } => format!("refused {count} more connections or messages"),
            MembershipEvent::Waiting { why } => format!("waiting for a link to another worker: {why}"),
            MembershipEvent::Continued { seconds } => {
                format!("continuing after {:.1} seconds alone", seconds.as_secs_f64())
            }
            MembershipEvent::Adopted { worker, from, to, .. } => {
                format!("adopted the model of worker {worker}: from round {from} to round {to}")
            }
            MembershipEvent::FetchFailed { worker, why } => {
                format!("no model from worker {worker}: {why}; asking another worker")
            }
            _ => return,
        };
        self.bar.suspend(|| tell!("round {round}: {text}"));
    }

    /// Moves the bar. Without a terminal, breaks a long silence.
    fn show_round(&mut self, done: u64) {
        self.bar.set_position(done);
        if !self.bar.is_hidden() || !self.lines || self.last_line.elapsed() < LONGEST_SILENCE {
            return;
        }
        let passed = self.started.elapsed().as_secs_f64();
        let left = passed * self.rounds.saturating_sub(done) as f64 / done.saturating_sub(self.first).max(1) as f64;
        let percent = 100 * done / self.rounds.max(1);
        self.print(&format!("round {done}/{} ({percent} %), {} left", self.rounds, duration(left)));
    }

    fn show_epoch(&mut self, event: &Event) {
        let Some(line) = EpochLine::of(event, self.epochs, self.server) else {
            return;
        };
        if self.runs > 1 {
            return;
        }
        let is_too_often = self.epochs > MANY_EPOCHS && self.last_line.elapsed() < BETWEEN_LINES;
        if self.lines && (!is_too_often || line.epoch == self.epochs) {
            self.print(&line.to_string());
        }
    }

    fn print(&mut self, line: &str) {
        self.last_line = Instant::now();
        self.bar.suspend(|| note!("{line}"));
    }
}

impl Observer for ProgressDisplay {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        self.show(event);
        ControlFlow::Continue
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The style of the bar, for rounds of this many examples.
fn style(examples: usize) -> ProgressStyle {
    let rate = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{:.0}", state.per_sec() * examples as f64);
    };
    ProgressStyle::with_template("{prefix}{wide_bar} round {pos}/{len}, {examples} examples/s, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("examples", rate)
}

/// Formats a duration roughly.
fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds if seconds < 6000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}
