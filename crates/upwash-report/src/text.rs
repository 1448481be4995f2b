//! Plain-text summary of a run for terminals of 80 columns.

use crate::{Epoch, Run};
use std::fmt::Write;
use upwash::run::Status;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Width of the loss chart in columns.
const CHART_WIDTH: usize = 40;

/// A table of the workers with their last losses and test accuracies, and a chart of each worker's losses.
pub fn show(run: &Run) -> String {
    let mut text = header(run);
    text.push_str(&table(run));
    let accuracies = run.last_accuracies();
    if !accuracies.is_empty() {
        let percent = accuracies.iter().map(|entry| 100.0 * entry.1);
        let mean = percent.clone().sum::<f64>() / accuracies.len() as f64;
        let worst = percent.fold(f64::INFINITY, f64::min);
        let _ = write!(text, "\n  mean {mean:.2} %, worst {worst:.2} %");
        if let Some(averaged) = run.averaged_accuracy {
            let _ = write!(text, ", averaged model {:.2} %", 100.0 * averaged);
        }
        text.push('\n');
    }
    if let Some(last) = run.epochs.last() {
        let (gigabytes, seconds) = (last.bytes as f64 / 1e9, last.seconds);
        let _ = writeln!(text, "  {gigabytes:.3} GB sent, {seconds:.1} simulated seconds");
    }
    text
}

/// The run's name, progress, state and notices.
fn header(run: &Run) -> String {
    let mut text = format!("{}: {} on {}\n", run.name, run.algorithm, run.graph_name);
    let state = match &run.ending {
        Some(Status::Finished) => "finished".to_string(),
        Some(Status::Diverged { worker, round }) => {
            format!("worker {worker} diverged in round {round}")
        }
        Some(Status::Interrupted { round }) => format!("stopped before round {round}"),
        None => "still running or interrupted".into(),
    };
    let _ =
        writeln!(text, "{} of {} rounds, {} parameters per model: {state}", run.rounds_run, run.rounds, run.parameters);
    for notice in &run.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    text
}

/// A row for each worker other than the server.
fn table(run: &Run) -> String {
    let losses = |worker: usize| -> (usize, Vec<f64>) {
        let loss = |epoch: &Epoch| epoch.losses.get(worker).copied().flatten();
        let all = run.epochs.iter().map(loss);
        (worker, all.map(|loss| loss.unwrap_or(f64::NAN)).collect())
    };
    let workers = run.training_workers();
    let all: Vec<(usize, Vec<f64>)> = workers.map(losses).collect();
    let finite = || all.iter().flat_map(|entry| &entry.1).filter(|loss| loss.is_finite());
    let lowest = finite().copied().fold(f64::INFINITY, f64::min);
    let highest = finite().copied().fold(0.0, f64::max);
    let accuracies = run.last_accuracies();
    let mut text = String::from("\n  worker  train loss  test accuracy  loss by epoch\n");
    for (worker, losses) in &all {
        let last = losses.last().copied().unwrap_or(f64::NAN);
        let last = match last.abs() < 1e-3 {
            true => format!("{last:.2e}"),
            false => format!("{last:.4}"),
        };
        let accuracy = accuracies.iter().find(|(id, _)| id == worker);
        let accuracy = accuracy.map(|(_, accuracy)| format!("{:.2} %", 100.0 * accuracy));
        let accuracy = accuracy.unwrap_or("-".into());
        let chart = chart(losses, lowest, highest);
        let _ = writeln!(text, "  {worker:>6}  {last:>10}  {accuracy:>13}  {chart}");
    }
    text
}

/// A row of bars. The scale is logarithmic and the same for all workers.
fn chart(losses: &[f64], lowest: f64, highest: f64) -> String {
    let columns = losses.len().min(CHART_WIDTH);
    let (low, high) = (lowest.max(1e-9).ln(), highest.max(1e-9).ln());
    let bar = |column: usize| {
        let chunk = &losses[column * losses.len() / columns..(column + 1) * losses.len() / columns];
        let mean = chunk.iter().sum::<f64>() / chunk.len() as f64;
        if !mean.is_finite() {
            return ' ';
        }
        let height = if high > low { (mean.max(1e-9).ln() - low) / (high - low) } else { 1.0 };
        BARS[(height * 7.99).clamp(0.0, 7.0) as usize]
    };
    (0..columns).map(bar).collect()
}
