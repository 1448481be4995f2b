//! Asynchronous EASGD: every worker meets the centre when it is ready to.

use super::{Asynchronous, Definition, Easgd, Meeting, Message, Method, Part, Turn, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "async-easgd",
    about: "EASGD without a barrier: a worker and the centre pull at each other when it is ready",
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
    fn partner(&self, turn: &Turn<'_>) -> Option<usize> {
        let meets = (turn.step + 1).is_multiple_of(self.0.period);
        turn.centre.filter(|_| meets)
    }

    fn meet(&self, turn: &Turn<'_>, partner: Option<(usize, f64)>) -> Meeting {
        let Some((centre, _)) = partner else {
            return Meeting::alone(turn.worker);
        };
        let part = |worker, model: super::Assignment| Part {
            worker,
            messages: vec![Message::of([(Vector::Model, 1.0)])],
            plan: model.into(),
        };
        Meeting {
            parts: vec![
                part(
                    turn.worker,
                    self.0.worker(turn.worker, centre, turn.training),
                ),
                part(centre, self.0.centre(centre, &[turn.worker], turn.training)),
            ],
        }
    }

    fn has_centre(&self) -> bool {
        true
    }

    fn words(&self) -> String {
        format!(
            "asynchronous EASGD (beta {}, period {})",
            self.0.beta, self.0.period
        )
    }
}
