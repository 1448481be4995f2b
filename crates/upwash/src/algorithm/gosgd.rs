//! GoSGD: a worker with a new gradient steps and sometimes pushes its model to a random neighbor.

use super::{
    Assignment, AsyncStep, Asynchronous, Definition, Method, Outgoing, PairExchange, PairwiseUpdate, Plan, Vector,
    WorkerPlan,
};
use crate::ids::WorkerId;

pub(super) const DEFINITION: Definition = Definition {
    name: "gosgd",
    about: "a worker with a new gradient steps and sometimes pushes half its weight to a neighbor",
    paper: "Blot et al. 2016, Gossip Training for Deep Learning",
    build: |options| {
        let about = "the probability of a push after a step";
        let probability = options.number("probability", 0.5, 0.0..=1.0, about)?;
        Ok(Method::Asynchronous(Box::new(GoSgd { probability })))
    },
};

/// A push halves the sender's weight w_i. The receiver becomes the weighted average
/// x_j' = (w_j x_j + w_i/2 y_i) / (w_j + w_i/2), with weight w_j + w_i/2. The sum of all weights does not change.
#[derive(Clone, Copy, Debug)]
pub struct GoSgd {
    /// The probability of a push after a step.
    pub probability: f64,
}

impl Asynchronous for GoSgd {
    fn partner(&self, step: &AsyncStep<'_>) -> Option<WorkerId> {
        let mut stream = step.random();
        let pushes = stream.uniform() < self.probability;
        let count = step.neighbors.len();
        (pushes && count > 0).then(|| step.neighbors[stream.below(count)].into())
    }

    fn update(&self, step: &AsyncStep<'_>, partner: Option<(WorkerId, f64)>) -> PairwiseUpdate {
        let mut update = PairwiseUpdate::alone(step.worker);
        let Some((partner, partner_weight)) = partner else {
            return update;
        };
        let half = step.scalar / 2.0;
        let sum = partner_weight + half;
        update.plans[0].plan.scalar = Some(half);
        let mut model = Assignment::mixed(Vector::Model, vec![(step.worker, half / sum)]);
        model.add(partner, partner_weight / sum);
        let plan = Plan { scalar: Some(sum), ..model.into() };
        update.plans.push(WorkerPlan { worker: partner, messages: vec![Outgoing::model()], plan });
        update
    }

    fn pair_exchange(&self) -> PairExchange {
        PairExchange::Push
    }

    fn display_name(&self) -> String {
        format!("GoSGD (probability {})", self.probability)
    }
}
