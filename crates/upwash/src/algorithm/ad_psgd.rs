//! AD-PSGD: a worker with a new gradient averages with a random neighbor.

use super::{
    Assignment, AsyncStep, Asynchronous, Definition, Method, Outgoing, PairwiseUpdate, Plan, Vector, WorkerPlan,
};
use crate::ids::WorkerId;

pub(super) const DEFINITION: Definition = Definition {
    name: "ad-psgd",
    about: "a worker with a new gradient averages its model with that of a random neighbor, then steps",
    paper: "Lian et al. 2018, Asynchronous Decentralized Parallel SGD",
    build: |_| Ok(Method::Asynchronous(Box::new(AdPsgd))),
};

/// x_i' = (x_i + x_j)/2 - u_i and x_j' = (x_i + x_j)/2, at once. An update locks both models in the order of their
/// indices, so workers cannot deadlock on any graph.
#[derive(Clone, Copy, Debug)]
pub struct AdPsgd;

impl Asynchronous for AdPsgd {
    fn partner(&self, step: &AsyncStep<'_>) -> Option<WorkerId> {
        step.random_neighbor()
    }

    fn update(&self, step: &AsyncStep<'_>, partner: Option<(WorkerId, f64)>) -> PairwiseUpdate {
        let Some((partner, _)) = partner else {
            return PairwiseUpdate::alone(step.worker);
        };
        let mut both = vec![(step.worker, 0.5), (partner, 0.5)];
        both.sort_unstable_by_key(|entry| entry.0);
        let mean = Assignment::mixed(Vector::Model, both);
        let mut stepped = mean.clone();
        stepped.add_own(Vector::Step, -1.0);
        let plan =
            |worker, plan: Assignment| WorkerPlan { worker, messages: vec![Outgoing::model()], plan: Plan::from(plan) };
        PairwiseUpdate { plans: vec![plan(step.worker, stepped), plan(partner, mean)] }
    }

    fn display_name(&self) -> String {
        "AD-PSGD".into()
    }
}
