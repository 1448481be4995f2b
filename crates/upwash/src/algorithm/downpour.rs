//! An asynchronous parameter server with bounded staleness, after Downpour SGD.

use super::{
    Assignment, AsyncStep, Asynchronous, Definition, Method, Outgoing, PairExchange, PairwiseUpdate, Vector, WorkerPlan,
};
use crate::ids::WorkerId;

pub(super) const DEFINITION: Definition = Definition {
    name: "downpour",
    about: "each worker, when it is ready, pushes its step to the server and takes the server's model",
    paper: "Dean et al. 2012, Large Scale Distributed Deep Networks; staleness: Ho et al. 2013",
    build: |options| {
        let about = "the number of gradients by which a worker may be ahead of the slowest";
        let staleness = options.count("staleness", 8, about)?;
        let about = "scale each push by 1/workers, so that one push of each worker is a step along the mean";
        let averaged = options.flag("averaged", true, about)?;
        let downpour = Downpour { staleness, averaged };
        Ok(Method::Asynchronous(Box::new(downpour)))
    },
};

/// c' = c - p u_i and x_i' = c', with p = 1/workers or 1. A worker that would be more than `staleness` gradients ahead
/// of the slowest worker waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Downpour {
    /// The number of gradients by which a worker may be ahead of the slowest.
    pub staleness: u64,
    /// Whether each push is scaled by 1/workers.
    pub averaged: bool,
}

impl Asynchronous for Downpour {
    fn partner(&self, step: &AsyncStep<'_>) -> Option<WorkerId> {
        step.server
    }

    fn update(&self, step: &AsyncStep<'_>, partner: Option<(WorkerId, f64)>) -> PairwiseUpdate {
        let Some((server, _)) = partner else {
            return PairwiseUpdate::alone(step.worker);
        };
        let part = if self.averaged { 1.0 / step.training as f64 } else { 1.0 };
        let pulled =
            Assignment { messages: vec![(server, 1.0)], ..Assignment::of(Vector::Model, [(Vector::Step, -part)]) };
        let pushed = Assignment {
            messages: vec![(step.worker, -part)],
            ..Assignment::of(Vector::Model, [(Vector::Model, 1.0)])
        };
        PairwiseUpdate {
            plans: vec![
                WorkerPlan {
                    worker: step.worker,
                    messages: vec![Outgoing::of([(Vector::Step, 1.0)])],
                    plan: pulled.into(),
                },
                WorkerPlan { worker: server, messages: vec![Outgoing::model()], plan: pushed.into() },
            ],
        }
    }

    fn pair_exchange(&self) -> PairExchange {
        PairExchange::PushAndPull
    }

    fn staleness(&self) -> Option<u64> {
        Some(self.staleness)
    }

    fn has_server(&self) -> bool {
        true
    }

    fn display_name(&self) -> String {
        format!("Downpour (staleness {})", self.staleness)
    }
}
