//! Plain-text summary of a run for terminals of 80 columns.

use crate::statistics::mean;
use crate::{Epoch, Run};
use std::fmt::Write;
use upwash::experiment::Experiment;
use upwash::run::{Status, Summary};

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
        let average = percent.clone().sum::<f64>() / accuracies.len() as f64;
        let worst = percent.fold(f64::INFINITY, f64::min);
        let _ = write!(text, "\n  mean {average:.2} %, worst {worst:.2} %");
        if let Some(averaged) = run.averaged_accuracy {
            let _ = write!(text, ", averaged model {:.2} %", 100.0 * averaged);
        }
        text.push('\n');
    }
    if let Some(last) = run.epochs.last() {
        let (gigabytes, seconds) = (last.bytes as f64 / 1e9, last.seconds);
        let _ = writeln!(text, "  {gigabytes:.3} GB sent, {seconds:.1} {}", clock(run.is_real_time));
    }
    text
}

/// The results of a run: a row for each worker, their mean, the averaged model and the costs.
pub fn summary_table(summary: &Summary) -> String {
    let mut text = format!("{} on {}, {} rounds\n", summary.algorithm, summary.graph, summary.rounds);
    let _ = match summary.status {
        Status::Finished => Ok(()),
        Status::Diverged { worker, round } => {
            writeln!(text, "diverged: the loss of worker {worker} in round {round}; diverged.upwash has the models")
        }
        Status::Interrupted { round } => writeln!(text, "interrupted before round {round}; continue it with --resume"),
        Status::Isolated { round } => writeln!(text, "isolated before round {round}: no other peer was in reach"),
    };
    let has_local = summary.per_worker.iter().any(|worker| worker.local_train_loss.is_some());
    let local = if has_local { "  local loss" } else { "" };
    let _ = writeln!(text, "\n  worker  train loss{local}  test accuracy");
    let mut row = |name: &str, train_loss: f64, local_loss: Option<f64>, accuracy: f64| {
        let local = local_loss.map_or(String::new(), |loss| format!("  {loss:>10.4}"));
        // Of a run that was stopped, a process knows only its own workers.
        let train_loss = known(train_loss).map_or("-".into(), |loss| format!("{loss:.4}"));
        let _ = writeln!(text, "  {name:>6}  {train_loss:>10}{local}  {:>13}", percent(accuracy));
    };
    let training = || summary.training_workers();
    for worker in training() {
        row(&worker.id.to_string(), worker.train_loss, worker.local_train_loss, worker.test_accuracy);
    }
    let train_losses: Vec<f64> = training().filter_map(|worker| known(worker.train_loss)).collect();
    let local_losses: Option<Vec<f64>> = training().map(|worker| worker.local_train_loss).collect();
    row("mean", mean(&train_losses), local_losses.map(|losses| mean(&losses)), summary.mean_accuracy);
    let model = if summary.server.is_some() { "server model" } else { "averaged model" };
    let (averaged, sent) = (percent(summary.averaged_model_accuracy), &summary.sent);
    let distance = known(summary.consensus_distance);
    let distance = distance.map_or(String::new(), |distance| format!(", consensus distance {distance:.4}"));
    let _ = writeln!(
        text,
        "\n  {model} {averaged}{distance}\n  {:.1} MB in {} messages, {:.1} {}",
        sent.bytes_sent as f64 / 1e6,
        sent.messages_sent,
        sent.simulated_seconds,
        clock(summary.is_real_time)
    );
    text
}

/// What the seconds of a run are.
fn clock(is_real_time: bool) -> &'static str {
    if is_real_time { "seconds" } else { "simulated seconds" }
}

/// How many images of each class every worker trains on.
pub fn shard_table(experiment: &Experiment) -> String {
    const MAX_ROWS: usize = 16;
    let (data, shards) = (&experiment.data, experiment.sampler.shards());
    let (partition, images) = (experiment.config.data.partition, data.train.len());
    let mut text = format!("{}: {images} images, split by `{partition}`\n\n", data.name);
    let counts = shards.class_counts(&data.train, data.classes);
    let has_class_columns = data.classes <= 10;
    let _ = match has_class_columns {
        true => {
            let classes: String = (0..data.classes).map(|class| format!("{class:>6}")).collect();
            writeln!(text, "  worker{classes}   all")
        }
        false => writeln!(text, "  worker  images  classes  largest class"),
    };
    for (worker, counts) in counts.iter().enumerate().take(MAX_ROWS) {
        let images: usize = counts.iter().sum();
        let _ = if has_class_columns {
            let cells: String = counts.iter().map(|count| format!("{count:>6}")).collect();
            writeln!(text, "  {worker:>6}{cells}{images:>6}")
        } else {
            let classes = counts.iter().filter(|&&count| count > 0).count();
            let largest = counts.iter().max().copied().unwrap_or(0);
            writeln!(text, "  {worker:>6}{images:>8}{classes:>9}{largest:>15}")
        };
    }
    if counts.len() > MAX_ROWS {
        let _ = writeln!(text, "  ... and {} more", counts.len() - MAX_ROWS);
    }
    let unused = images - shards.images.iter().map(Vec::len).sum::<usize>();
    if unused > 0 {
        let _ = writeln!(text, "  {unused} images are left out, so that all workers have equally many");
    }
    text
}

/// A value, if it was measured.
fn known(value: f64) -> Option<f64> {
    (!value.is_nan()).then_some(value)
}

/// A fraction in percent, if it was measured.
fn percent(part: f64) -> String {
    match part.is_nan() {
        true => "not tested".into(),
        false => format!("{:.2} %", 100.0 * part),
    }
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
        Some(Status::Isolated { round }) => format!("isolated before round {round}: no other peer was in reach"),
        None if run.is_running => "running".into(),
        None => format!("cut off; {}", run.continuation()),
    };
    let _ =
        writeln!(text, "{} of {} rounds, {} parameters per model: {state}", run.rounds_run, run.rounds, run.parameters);
    for notice in &run.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    for (worker, participation) in &run.participation {
        let _ = writeln!(text, "note: worker {worker}: {participation}");
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
        // A worker may not have finished the last epoch yet.
        let last = losses.iter().rfind(|loss| !loss.is_nan());
        let last = last.map_or("-".into(), |last| match last.abs() < 1e-3 {
            true => format!("{last:.2e}"),
            false => format!("{last:.4}"),
        });
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The summary of a process that knows the loss of its own worker only.
    fn stopped() -> Summary {
        let worker = |id: usize, loss: &str| format!(r#"{{"id":{id},"train_loss":{loss},"test_accuracy":null}}"#);
        let text = format!(
            r#"{{"version":1,"algorithm":"D-PSGD","graph":"ring:2","workers":2,"rounds":10,"status":"interrupted",
            "round":10,"per_worker":[{},{}],"mean_accuracy":null,"worst_accuracy":null,
            "averaged_model_accuracy":null,"consensus_distance":null,"bytes_sent":5000000,"messages_sent":9,
            "simulated_seconds":1.5,"is_real_time":true}}"#,
            worker(0, "0.25"),
            worker(1, "null")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn unknown_values_are_no_nan() {
        let table = summary_table(&stopped());
        assert!(!table.contains("NaN"), "{table}");
        assert!(table.contains("       1           -"), "{table}");
        assert!(table.contains("    mean      0.2500"), "{table}");
        assert!(table.contains("9 messages, 1.5 seconds"), "{table}");
        let simulated = summary_table(&Summary { is_real_time: false, ..stopped() });
        assert!(simulated.contains("1.5 simulated seconds"), "{simulated}");
    }
}
