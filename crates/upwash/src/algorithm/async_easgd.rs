//! Asynchronous EASGD: each worker exchanges with the server when it is ready.

use super::{AsyncStep, Asynchronous, Definition, Easgd, Method, Outgoing, PairwiseUpdate, Vector, WorkerPlan};
use crate::ids::WorkerId;

pub(super) const DEFINITION: Definition = Definition {
    name: "async-easgd",
    about: "EASGD without a barrier: a worker that is ready and the server pull each other",
    paper: "Zhang, Choromanska, LeCun 2015, Deep Learning with Elastic Averaging SGD",
    build: |options| Ok(Method::Asynchronous(Box::new(AsyncEasgd(Easgd::read(options)?)))),
};

/// Every `period`-th gradient of worker i: x_i' = x_i - u_i - alpha (x_i - c), c' = c + alpha (x_i - c).
#[derive(Clone, Copy, Debug)]
pub struct AsyncEasgd(pub Easgd);

impl Asynchronous for AsyncEasgd {
    fn partner(&self, step: &AsyncStep<'_>) -> Option<WorkerId> {
        let is_due = (step.step + 1).is_multiple_of(self.0.period);
        step.server.filter(|_| is_due)
    }

    fn update(&self, step: &AsyncStep<'_>, partner: Option<(WorkerId, f64)>) -> PairwiseUpdate {
        let Some((server, _)) = partner else {
            return PairwiseUpdate::alone(step.worker);
        };
        let plan = |worker, model: super::Assignment| WorkerPlan {
            worker,
            messages: vec![Outgoing::of([(Vector::Model, 1.0)])],
            plan: model.into(),
        };
        PairwiseUpdate {
            plans: vec![
                plan(step.worker, self.0.worker(step.worker, server, step.training)),
                plan(server, self.0.server(server, &[step.worker], step.training)),
            ],
        }
    }

    fn has_server(&self) -> bool {
        true
    }

    fn display_name(&self) -> String {
        format!("asynchronous EASGD (beta {}, period {})", self.0.beta, self.0.period)
    }
}
