//! Progress of a run on a terminal: a bar and a line for each epoch.

use crate::output::{is_quiet, tell};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::io::IsTerminal;
use upwash::run::{ControlFlow, ControlRequest, Event, Observer};
use upwash::transport::MembershipEvent;

/// Observer that shows the progress of a run. It shows no bar unless stderr is a terminal.
pub struct ProgressDisplay {
    bar: ProgressBar,
    /// Whether to print a line for every epoch.
    epochs: bool,
    /// The server, which is left out of the statistics.
    server: Option<usize>,
    /// How many runs advance in lockstep and share the bar.
    runs: usize,
}

impl ProgressDisplay {
    /// A bar and, if `epochs` is set, a line for every epoch.
    pub fn new(epochs: bool) -> Self {
        let bar = match std::io::stderr().is_terminal() && !is_quiet() {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        Self { bar, epochs, ..Self::none() }
    }

    /// One bar for several runs that advance in lockstep.
    pub fn for_runs(runs: usize) -> Self {
        let mut display = Self::new(false);
        display.runs = runs;
        display
    }

    /// A display that shows nothing.
    pub fn none() -> Self {
        Self { bar: ProgressBar::hidden(), epochs: false, server: None, runs: 1 }
    }

    fn show(&mut self, event: &Event) {
        match event {
            Event::Started { algorithm, rounds, round, workers, server, batch_size, .. } => {
                self.server = *server;
                let training = workers - usize::from(server.is_some());
                self.bar.set_style(style(self.runs * training * batch_size));
                self.bar.set_length(*rounds);
                self.bar.set_position(*round);
                self.bar.reset_eta();
                self.bar.set_prefix(match self.runs {
                    1 => algorithm.clone(),
                    runs => format!("{runs} runs"),
                });
            }
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
            Event::Warning { message } => self.bar.suspend(|| tell!("warning: {message}")),
            Event::Peer { round, change } => {
                let text = match change {
                    MembershipEvent::Joined { worker } => format!("worker {worker} joined"),
                    MembershipEvent::Missing { worker, why } => {
                        format!("worker {worker} is missing ({why}); continuing without it")
                    }
                    MembershipEvent::Lost { worker, why } => {
                        format!("worker {worker} is lost: {why}")
                    }
                    MembershipEvent::Refused { what } => format!("refused: {what}"),
                    _ => return,
                };
                self.bar.suspend(|| tell!("round {round}: {text}"));
            }
            Event::Round { round, .. } => self.bar.set_position(round + 1),
            Event::Epoch { .. } if !self.epochs => {}
            Event::Epoch { epoch, train_losses, test_accuracies, local_train_losses, consensus_distance, sent } => {
                let spread = |values: &[f64]| spread(values, self.server);
                let tested = test_accuracies.as_ref().map_or(String::new(), |accuracies| {
                    let [mean, best, worst] = spread(accuracies).map(|accuracy| 100.0 * accuracy);
                    format!(", test accuracy {mean:.2} % (worst {worst:.2}, best {best:.2})")
                });
                let local = local_train_losses.as_ref().map_or(String::new(), |losses| {
                    let [mean, highest, lowest] = spread(losses);
                    format!(", local train loss {mean:.4} ({lowest:.4} to {highest:.4})")
                });
                let [mean, highest, lowest] = spread(train_losses);
                self.bar.println(format!(
                    "epoch {epoch:>3}: loss {mean:.4} ({lowest:.4} to {highest:.4}){local}{tested}, \
                     consensus distance {consensus_distance:.3}, sent {:.1} MB",
                    sent.bytes_sent as f64 / 1e6
                ));
            }
            Event::Ended { .. } => self.bar.finish_and_clear(),
        }
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
    ProgressStyle::with_template("{prefix} {wide_bar} round {pos}/{len}, {examples} examples/s, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("examples", rate)
}

/// Mean, largest and smallest of the values, without the server's.
fn spread(values: &[f64], server: Option<usize>) -> [f64; 3] {
    let counted = || {
        let others = values.iter().enumerate();
        others.filter(|(i, _)| Some(*i) != server).map(|(_, x)| *x)
    };
    let mean = counted().sum::<f64>() / counted().count().max(1) as f64;
    let largest = counted().fold(f64::NEG_INFINITY, f64::max);
    [mean, largest, counted().fold(f64::INFINITY, f64::min)]
}
