//! Compares two engines round by round.

use upwash::RowIndex;
use upwash::algorithm::{Exchange, ExchangeContext, WorkerStats};
use upwash::engine::MixOptions;
use upwash::engine::{Engine, GradientTask, State};
use upwash::experiment::Experiment;
use upwash::run::{ControlFlow, Event, Observer, Progress, TakeSnapshot};
use upwash_testkit::row_plans;

/// Records the losses of every round. Stops before round `stop_at` and takes a snapshot there.
#[derive(Default)]
pub struct Recorder {
    /// The losses of all workers, round by round.
    pub losses: Vec<Vec<f64>>,
    /// The round before which to stop.
    pub stop_at: Option<u64>,
    /// Progress and state at the stop.
    pub snapshot: Option<(Progress, State)>,
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Round { losses, .. } = event {
            self.losses.push(losses.clone());
        }
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, round: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        if self.stop_at != Some(round) {
            return ControlFlow::Continue;
        }
        self.snapshot = Some(snapshot().expect("the snapshot should not fail"));
        ControlFlow::Stop
    }
}

/// The deviation between two engines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deviation {
    /// The largest relative difference between the losses of a worker in a round.
    pub loss: f64,
    /// The largest norm of the difference between the models after a round, relative to the norm of their change in it.
    pub change: f64,
}

/// Runs both engines for `rounds` rounds. Both start every round from the state of the first engine: over several
/// rounds, even two correct engines would drift apart, because rounding turns a few activations near 0 on or off,
/// each of which changes the gradient by some thousandths, and training amplifies that.
pub fn compare(experiment: &Experiment, rounds: u64, first: &mut dyn Engine, second: &mut dyn Engine) -> Deviation {
    let mut deviation = Deviation::default();
    let mut previous_losses: Vec<Option<f64>> = vec![None; experiment.workers()];
    let mut scalars = vec![1.0; experiment.workers()];
    for round in 0..rounds {
        let state = first.state().expect("the state should be available");
        second.restore(&state).expect("both engines should be of the same experiment");
        let rate = experiment.config.training.learning_rate;
        let mut tasks = vec![None; experiment.workers()];
        for worker in experiment.training_workers() {
            let batch = round;
            tasks[worker] = Some(GradientTask { batch, rate });
        }
        let first_scores = first.step(&tasks).expect("the step should not fail");
        let second_scores = second.step(&tasks).expect("the step should not fail");
        for (a, b) in first_scores.iter().flatten().zip(second_scores.iter().flatten()) {
            deviation.loss = deviation.loss.max((a.loss / b.loss - 1.0).abs());
        }
        let algorithm = experiment.method.synchronous().expect("the algorithm should be synchronous");
        let up = experiment.schedule.round(round);
        let losses: Vec<Option<f64>> = first_scores.iter().map(|score| Some((*score)?.loss)).collect();
        let exchanges = algorithm.exchanges(round);
        for (index, &exchange) in exchanges.iter().enumerate() {
            let reported = match exchange {
                Exchange::Early => &previous_losses,
                _ => &losses,
            };
            let stats = |i: usize| WorkerStats { loss: reported[i], degree: up.degree(i), scalar: scalars[i] };
            let stats: Vec<WorkerStats> = (0..experiment.workers()).map(stats).collect();
            let context = ExchangeContext {
                exchange: index,
                momentum: experiment.config.training.sgd().momentum,
                server: experiment.server,
                ..ExchangeContext::new(&up, rate)
            };
            let plans = exchange.plans(algorithm, &context, &stats);
            let options = MixOptions {
                server: experiment.server.map(RowIndex::in_one_process),
                round,
                is_last: index + 1 == exchanges.len(),
                ..Default::default()
            };
            first.exchange(&row_plans(&plans), vec![], options).expect("the exchange should not fail");
            second.exchange(&row_plans(&plans), vec![], options).expect("the exchange should not fail");
            for plan in plans {
                scalars[plan.worker] = plan.plan.scalar.unwrap_or(scalars[plan.worker]);
            }
        }
        previous_losses = losses;
        let [a, b] =
            [first.state(), second.state()].map(|state| state.expect("the state should be available")[0].1.clone());
        let norm = |pairs: &mut dyn Iterator<Item = (&f32, &f32)>| -> f64 {
            let squares = pairs.map(|(x, y)| f64::from(x - y).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let change = norm(&mut a.iter().zip(&state[0].1));
        let difference = norm(&mut a.iter().zip(&b));
        deviation.change = deviation.change.max(difference / change);
    }
    deviation
}
