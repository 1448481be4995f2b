//! Asynchronous EASGD: every worker meets the server when it is ready to.

use super::{
    AsyncStep, Asynchronous, Definition, Easgd, Meeting, Method, Outgoing, Vector, WorkerPlan,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "async-easgd",
    about: "EASGD without a barrier: a worker and the server pull at each other when it is ready",
    paper: "Zhang, Choromanska, LeCun 2015, Deep Learning with Elastic Averaging SGD",
    build: |options| {
        Ok(Method::Asynchronous(Box::new(AsyncEasgd(Easgd::read(
            options,
        )?))))
    },
};

/// Every `period`-th gradient of worker i: x_i' = x_i - u_i - alpha (x_i - c), c' = c + alpha (x_i - c).
#[derive(Clone, Copy, Debug)]
pub struct AsyncEasgd(pub Easgd);

impl Asynchronous for AsyncEasgd {
    fn partner(&self, turn: &AsyncStep<'_>) -> Option<usize> {
        let meets = (turn.step + 1).is_multiple_of(self.0.period);
        turn.server.filter(|_| meets)
    }

    fn meet(&self, turn: &AsyncStep<'_>, partner: Option<(usize, f64)>) -> Meeting {
        let Some((server, _)) = partner else {
            return Meeting::alone(turn.worker);
        };
        let part = |worker, model: super::Assignment| WorkerPlan {
            worker,
            messages: vec![Outgoing::of([(Vector::Model, 1.0)])],
            plan: model.into(),
        };
        Meeting {
            parts: vec![
                part(
                    turn.worker,
                    self.0.worker(turn.worker, server, turn.training),
                ),
                part(server, self.0.server(server, &[turn.worker], turn.training)),
            ],
        }
    }

    fn has_server(&self) -> bool {
        true
    }

    fn display_name(&self) -> String {
        format!(
            "asynchronous EASGD (beta {}, period {})",
            self.0.beta, self.0.period
        )
    }
}
