//! The line about an epoch, at most 80 columns wide.

use crate::output::{WIDTH, is_verbose};
use std::fmt::{Display, Formatter, Result};
use upwash::WorkerId;
use upwash::run::Event;

/// What is said about an epoch.
pub(super) struct EpochLine {
    pub(super) epoch: u64,
    /// The total number of epochs.
    epochs: u64,
    parts: Vec<String>,
}

impl EpochLine {
    /// Describes an epoch; `None` for other events.
    pub(super) fn of(event: &Event, epochs: u64, server: Option<WorkerId>) -> Option<Self> {
        let Event::Epoch {
            epoch,
            train_losses,
            test_accuracies,
            local_train_losses,
            clipped,
            consensus_distance,
            sent,
        } = event
        else {
            return None;
        };
        let known = |values: &[f64]| Spread::of(values, server);
        let mut parts = Vec::new();
        let loss = known(train_losses);
        if let Some(loss) = &loss {
            parts.push(format!("loss {:.4}", loss.mean));
        }
        let tested = test_accuracies.as_ref().and_then(|accuracies| known(accuracies));
        if let Some(Spread { mean, least, .. }) = &tested {
            parts.push(format!("test accuracy {:.2} % (worst {:.2})", 100.0 * mean, 100.0 * least));
        }
        let local = local_train_losses.as_ref().and_then(|losses| known(losses));
        if let Some(local) = &local {
            parts.push(format!("local train loss {:.4}", local.mean));
        }
        if let Some(clipped) = clipped.as_ref().and_then(|clipped| known(clipped)) {
            parts.push(format!("clipped {:.0} % of gradients", 100.0 * clipped.mean));
        }
        parts.push(format!("sent {:.1} MB", sent.bytes_sent as f64 / 1e6));
        if is_verbose() {
            let range = |what: &str, spread: &Spread| format!("{what} {:.4} to {:.4}", spread.least, spread.most);
            parts.extend(loss.as_ref().map(|loss| range("losses", loss)));
            parts.extend(local.as_ref().map(|local| range("local train losses", local)));
            parts.extend(tested.as_ref().map(|tested| format!("best {:.2} %", 100.0 * tested.most)));
            if consensus_distance.is_finite() {
                parts.push(format!("consensus distance {consensus_distance:.3}"));
            }
            parts.push(format!("time {:.1} s", sent.simulated_seconds));
        }
        Some(Self { epoch: *epoch, epochs, parts })
    }
}

impl Display for EpochLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let digits = self.epochs.to_string().len();
        let start = format!("epoch {:>digits$}/{}: ", self.epoch, self.epochs);
        let indent = " ".repeat(start.len());
        let mut column = start.len();
        write!(f, "{start}")?;
        for (index, part) in self.parts.iter().enumerate() {
            let (separator, width) = if index == 0 { ("", part.len()) } else { (", ", part.len() + 2) };
            // A comma may follow.
            if index > 0 && column + width + 1 > WIDTH {
                write!(f, ",\n{indent}{part}")?;
                column = indent.len() + part.len();
            } else {
                write!(f, "{separator}{part}")?;
                column += width;
            }
        }
        Ok(())
    }
}

/// Statistics of the workers that are in this process and train.
struct Spread {
    mean: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// `None` if no value is known.
    fn of(values: &[f64], server: Option<WorkerId>) -> Option<Self> {
        let counted = WorkerId::all(values.len())
            .zip(values)
            .filter(|(worker, value)| Some(*worker) != server && !value.is_nan());
        let counted: Vec<f64> = counted.map(|(_, value)| *value).collect();
        let least = counted.iter().copied().reduce(f64::min)?;
        let most = counted.iter().copied().reduce(f64::max)?;
        Some(Self { mean: counted.iter().sum::<f64>() / counted.len() as f64, least, most })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use upwash::run::RunCost;

    fn epoch(losses: &[f64], accuracies: Option<&[f64]>, bytes_sent: u64) -> Event {
        Event::Epoch {
            epoch: 7,
            train_losses: losses.to_vec(),
            test_accuracies: accuracies.map(<[f64]>::to_vec),
            local_train_losses: Some(losses.to_vec()),
            clipped: Some(losses.iter().map(|loss| if loss.is_nan() { f64::NAN } else { 0.25 }).collect()),
            consensus_distance: 1234.567,
            sent: RunCost { bytes_sent, messages_sent: 9, simulated_seconds: 3.0 },
        }
    }

    #[test]
    fn lines_fit_a_terminal_of_80_columns() {
        for epochs in [9, 20, 5000, 1_000_000_000] {
            for losses in [[0.1234, 0.5], [123456.0, 1e9]] {
                let line = EpochLine::of(&epoch(&losses, Some(&losses), u64::MAX), epochs, None).unwrap().to_string();
                assert!(line.lines().all(|line| line.chars().count() <= 80), "{line}");
            }
        }
        let short = EpochLine::of(&epoch(&[0.25, 0.75], Some(&[0.9, 0.95]), 5_500_000), 20, None).unwrap().to_string();
        let expected = "epoch  7/20: loss 0.5000, test accuracy 92.50 % (worst 90.00),\n             \
                        local train loss 0.5000, clipped 25 % of gradients, sent 5.5 MB";
        assert_eq!(short, expected);
    }

    #[test]
    fn servers_and_workers_elsewhere_are_left_out() {
        let some = epoch(&[9.0, 0.5, f64::NAN], Some(&[0.1, 0.9, f64::NAN]), 0);
        let line = EpochLine::of(&some, 20, Some(WorkerId(0))).unwrap().to_string();
        assert!(line.contains("loss 0.5000, test accuracy 90.00 % (worst 90.00)"), "{line}");
        let none = EpochLine::of(&epoch(&[f64::NAN], Some(&[f64::NAN]), 0), 20, None).unwrap().to_string();
        assert_eq!(none, "epoch  7/20: sent 0.0 MB");
    }
}
