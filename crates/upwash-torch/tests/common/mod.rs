//! Two engines side by side.

use upwash::algorithm::{Report, View};
use upwash::engine::{Engine, Score, State};
use upwash::experiment::Experiment;
use upwash::run::{Event, Next, Observer, Progress};

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
    fn observe(&mut self, event: &Event) -> Next {
        if let Event::Round { losses, .. } = event {
            self.losses.push(losses.clone());
        }
        Next::Continue
    }

    fn between_rounds(&mut self, progress: &Progress, engine: &dyn Engine) -> Next {
        if self.stop != Some(progress.round) {
            return Next::Continue;
        }
        self.kept = Some((progress.clone(), engine.state()));
        Next::Stop
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
pub fn compare(
    experiment: &Experiment,
    rounds: u64,
    first: &mut dyn Engine,
    second: &mut dyn Engine,
) -> Apart {
    let mut apart = Apart::default();
    let mut before: Vec<Option<f64>> = vec![None; experiment.workers()];
    for round in 0..rounds {
        let state = first.state();
        second.restore(&state).expect("engines of one experiment");
        let rate = experiment.config.training.rate;
        let (ours, theirs) = (first.step(round, rate), second.step(round, rate));
        for (a, b) in ours.iter().zip(&theirs) {
            apart.loss = apart.loss.max((a.loss / b.loss - 1.0).abs());
        }
        let (message, up) = (
            experiment.algorithm.message(),
            experiment.schedule.round(round),
        );
        let losses = |scores: &[Score]| scores.iter().map(|score| Some(score.loss)).collect();
        let now: Vec<Option<f64>> = losses(&ours);
        let reported = if message.is_before_gradient() {
            &before
        } else {
            &now
        };
        let report = |i: usize| Report {
            loss: reported[i],
            degree: up.degree(i),
        };
        let plan = |worker: usize| {
            let received: Vec<_> = up.senders(worker).map(|j| (j, report(j))).collect();
            experiment.algorithm.plan(&View {
                worker,
                round: &up,
                rate,
                own: report(worker),
                received: &received,
            })
        };
        let plans: Vec<_> = (0..experiment.workers()).map(plan).collect();
        first.mix(message, &plans);
        second.mix(message, &plans);
        before = now;
        let [a, b] = [first.state(), second.state()].map(|state| state[0].1.clone());
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
