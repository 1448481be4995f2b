//! A run in a terminal, 80 columns wide.

use crate::Run;
use std::fmt::Write;
use upwash::run::Status;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of a small chart.
const CHART: usize = 40;

/// The final table, and how every worker's loss went.
pub fn show(run: &Run) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} on {}",
        run.name, run.algorithm, run.graph_name
    );
    let state = match &run.ending {
        Some(Status::Finished) => "finished".to_string(),
        Some(Status::Diverged { worker, round }) => {
            format!("worker {worker} diverged in round {round}")
        }
        Some(Status::Interrupted { round }) => format!("stopped before round {round}"),
        None => "going on, or cut off".into(),
    };
    let _ = writeln!(
        text,
        "{} of {} rounds, {} numbers a model: {state}",
        run.rounds_run, run.rounds, run.parameters
    );
    for notice in &run.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    let losses = |worker: usize| -> Vec<f64> {
        let all = run
            .epochs
            .iter()
            .map(|epoch| epoch.losses.get(worker).copied().flatten());
        all.map(|loss| loss.unwrap_or(f64::NAN)).collect()
    };
    let workers: Vec<usize> = (0..run.workers)
        .filter(|worker| Some(*worker) != run.server)
        .collect();
    let all: Vec<Vec<f64>> = workers.iter().map(|&worker| losses(worker)).collect();
    let finite = || {
        all.iter()
            .flatten()
            .copied()
            .filter(|loss| loss.is_finite())
    };
    let (lowest, highest) = (
        finite().fold(f64::INFINITY, f64::min),
        finite().fold(0.0, f64::max),
    );
    let accuracies = run.last_accuracies();
    let _ = writeln!(
        text,
        "\n  worker  train loss  test accuracy  loss, epoch by epoch"
    );
    for (&worker, losses) in workers.iter().zip(&all) {
        let last = losses.last().copied().unwrap_or(f64::NAN);
        let accuracy = accuracies.iter().find(|(id, _)| *id == worker);
        let accuracy = accuracy.map_or("-".into(), |(_, accuracy)| {
            format!("{:.2} %", 100.0 * accuracy)
        });
        let chart = chart(losses, lowest, highest);
        let last = match last.abs() < 1e-3 {
            true => format!("{last:.2e}"),
            false => format!("{last:.4}"),
        };
        let _ = writeln!(text, "  {worker:>6}  {last:>10}  {accuracy:>13}  {chart}");
    }
    let count = accuracies.len().max(1) as f64;
    if !accuracies.is_empty() {
        let mean = accuracies.iter().map(|entry| entry.1).sum::<f64>() / count;
        let worst = accuracies
            .iter()
            .map(|entry| entry.1)
            .fold(f64::INFINITY, f64::min);
        let _ = write!(
            text,
            "\n  mean {:.2} %, worst {:.2} %",
            100.0 * mean,
            100.0 * worst
        );
        if let Some(averaged) = run.averaged_accuracy {
            let _ = write!(text, ", averaged model {:.2} %", 100.0 * averaged);
        }
        text.push('\n');
    }
    if let Some(last) = run.epochs.last() {
        let gigabytes = last.bytes as f64 / 1e9;
        let _ = writeln!(
            text,
            "  {gigabytes:.3} GB sent, {:.1} simulated seconds",
            last.seconds
        );
    }
    text
}

/// A row of bars on a logarithmic scale, which all workers share.
fn chart(losses: &[f64], lowest: f64, highest: f64) -> String {
    let columns = losses.len().min(CHART);
    let (low, high) = (lowest.max(1e-9).ln(), highest.max(1e-9).ln());
    let bar = |column: usize| {
        let part = &losses[column * losses.len() / columns..(column + 1) * losses.len() / columns];
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        if !mean.is_finite() {
            return ' ';
        }
        let height = if high > low {
            (mean.max(1e-9).ln() - low) / (high - low)
        } else {
            1.0
        };
        BARS[(height * 7.99).clamp(0.0, 7.0) as usize]
    };
    (0..columns).map(bar).collect()
}
