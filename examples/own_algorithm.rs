//! Your own algorithm: `cargo run --release -p upwash --example own_algorithm`

use upwash::{Algorithm, Assignment, Config, LocalView, Plan, Trainer, Vector};

/// Every worker averages its model with that of the neighbor with the lowest loss.
#[derive(Debug)]
struct FollowTheBest(f64);

impl Algorithm for FollowTheBest {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let best = view.received.iter().min_by(|a, b| a.1.by_loss(&b.1));
        let mut model = Assignment::mixed(Vector::Model, vec![(view.worker, 1.0 - self.0)]);
        model.add(best.map_or(view.worker, |best| best.0), self.0);
        model.into()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let output = std::env::args().nth(1).unwrap_or("runs/own-algorithm".into());
    let summary = Trainer::new(Config::default()) // the digits, eight workers on the graph L1
        .algorithm(FollowTheBest(0.5))
        .output(&output)
        .run()?;
    println!("{:.2} % right; upwash show {output}", 100.0 * summary.mean_accuracy);
    Ok(())
}
