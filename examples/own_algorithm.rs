//! An algorithm of one's own, by name: `cargo run --release -p upwash-burn --example own_algorithm`

use std::sync::Arc;
use upwash::algorithm::{
    Algorithm, Assignment, Definition, LocalView, Method, Plan, Registry, Vector,
};
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{Progress, run};

/// Everyone takes a part of the model of the neighbor with the lowest loss.
#[derive(Debug)]
struct FollowTheBest(f64);

impl Algorithm for FollowTheBest {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let mut heard = view.received.to_vec();
        heard.sort_by(|a, b| a.1.by_loss(&b.1));
        let mut model = Assignment::mixed(Vector::Model, vec![(view.worker, 1.0 - self.0)]);
        model.add(heard.first().map_or(view.worker, |best| best.0), self.0);
        model.into()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let registry = Registry::standard().with(Definition {
        name: "follow-the-best",
        about: "everyone averages with the neighbor whose loss is lowest",
        paper: "none yet",
        build: |options| {
            let part = options.number("part", 0.5, 0.0..=1.0, "how much of its model")?;
            Ok(Method::Synchronous(Box::new(FollowTheBest(part))))
        },
    });
    let config = Config::parse("algorithm.name = \"follow-the-best\"", &[])?;
    let experiment = Experiment::prepare_with(config, &DataPaths::default(), &registry)?;
    let network = Arc::new(upwash_burn::BurnNetwork::new(experiment.network.clone()));
    let mut fleet = experiment.fleet(network);
    let outcome = run(&experiment, &mut fleet, Progress::start(8), &mut ())?;
    println!("{:.1} % right", 100.0 * outcome.summary.mean_accuracy);
    Ok(())
}
