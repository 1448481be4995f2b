//! CSV export.

use crate::Run;
use std::fmt::Write;

/// A CSV table with one line per epoch and worker.
pub fn csv(runs: &[Run]) -> String {
    let mut text = String::from(
        "run,epoch,worker,train_loss,test_accuracy,consensus_distance,bytes_sent,simulated_seconds,\
         is_real_time\n",
    );
    let number = |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
    for run in runs {
        for epoch in &run.epochs {
            for worker in run.training_workers() {
                let accuracy = epoch.accuracies.as_ref().and_then(|all| *all.get(worker)?);
                let loss = epoch.losses.get(worker).copied().flatten();
                // The name is quoted because it may contain commas and quotes.
                let name = run.name.replace('"', "\"\"");
                let _ = writeln!(
                    text,
                    "\"{name}\",{},{worker},{},{},{},{},{},{}",
                    epoch.epoch,
                    number(loss),
                    number(accuracy),
                    number(epoch.consensus),
                    epoch.bytes,
                    epoch.seconds,
                    run.is_real_time
                );
            }
        }
    }
    text
}
