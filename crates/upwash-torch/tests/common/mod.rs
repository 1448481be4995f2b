//! Two engines side by side.

use upwash::RowIndex;
use upwash::algorithm::{Exchange, ExchangeContext, WorkerStats};
use upwash::engine::MixOptions;
use upwash::engine::{Engine, GradientTask, State};
use upwash::experiment::Experiment;
use upwash::run::{ControlFlow, Event, Observer, Progress, TakeSnapshot};
use upwash_testkit::row_plans;

/// Losses of every round; stops before round `stop` and keeps what is needed to go on.
#[derive(Default)]
pub struct Witness {
    /// Everyone's, round by round.
    pub losses: Vec<Vec<f64>>,
    /// Where to stop.
    pub stop: Option<u64>,
    /// What was kept there.
    pub kept: Option<(Progress, State)>,
}

impl Observer for Witness {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Round { losses, .. } = event {
            self.losses.push(losses.clone());
        }
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if self.stop != Some(round) {
            return ControlFlow::Continue;
        }
        self.kept = Some(snapshot().expect("a snapshot"));
        ControlFlow::Stop
    }
}

/// How far two engines are apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Apart {
    /// The largest relative difference of a worker's loss in a round.
    pub loss: f64,
    /// The largest difference of a round's change of all models, as a part of that change.
    pub change: f64,
}

/// Runs both for `rounds` rounds, each round from the first one's state. Left to themselves they would
/// drift apart however right they are: rounding turns a few activations near 0 on or off, the
/// gradient jumps by some thousandths with each, and training multiplies that.
pub fn compare(experiment: &Experiment, rounds: u64, first: &mut dyn Engine, second: &mut dyn Engine) -> Apart {
    let mut apart = Apart::default();
    let mut before: Vec<Option<f64>> = vec![None; experiment.workers()];
    let mut numbers = vec![1.0; experiment.workers()];
    for round in 0..rounds {
        let state = first.state().expect("a state");
        second.restore(&state).expect("engines of one experiment");
        let rate = experiment.config.training.learning_rate;
        let mut turns = vec![None; experiment.workers()];
        for worker in experiment.training_workers() {
            let batch = round;
            turns[worker] = Some(GradientTask { batch, rate });
        }
        let ours = first.step(&turns).expect("steps");
        let theirs = second.step(&turns).expect("steps");
        for (a, b) in ours.iter().flatten().zip(theirs.iter().flatten()) {
            apart.loss = apart.loss.max((a.loss / b.loss - 1.0).abs());
        }
        let algorithm = experiment.method.synchronous().expect("rounds");
        let up = experiment.schedule.round(round);
        let now: Vec<Option<f64>> = ours.iter().map(|score| Some((*score)?.loss)).collect();
        let exchanges = algorithm.exchanges(round);
        for (index, &exchange) in exchanges.iter().enumerate() {
            let reported = match exchange {
                Exchange::Early => &before,
                _ => &now,
            };
            let report = |i: usize| WorkerStats { loss: reported[i], degree: up.degree(i), scalar: numbers[i] };
            let reports: Vec<WorkerStats> = (0..experiment.workers()).map(report).collect();
            let context = ExchangeContext {
                exchange: index,
                momentum: experiment.config.training.momentum,
                server: experiment.server,
                ..ExchangeContext::new(&up, rate)
            };
            let parts = exchange.plans(algorithm, &context, &reports);
            let options = MixOptions {
                server: experiment.server.map(RowIndex),
                round,
                is_last: index + 1 == exchanges.len(),
                ..Default::default()
            };
            first.exchange(&row_plans(&parts), vec![], options).expect("an exchange");
            second.exchange(&row_plans(&parts), vec![], options).expect("an exchange");
            for part in parts {
                numbers[part.worker] = part.plan.scalar.unwrap_or(numbers[part.worker]);
            }
        }
        before = now;
        let [a, b] = [first.state(), second.state()].map(|state| state.expect("a state")[0].1.clone());
        let length = |pairs: &mut dyn Iterator<Item = (&f32, &f32)>| -> f64 {
            let squares = pairs.map(|(x, y)| f64::from(x - y).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let change = length(&mut a.iter().zip(&state[0].1));
        let difference = length(&mut a.iter().zip(&b));
        apart.change = apart.change.max(difference / change);
    }
    apart
}
