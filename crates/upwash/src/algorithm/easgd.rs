//! Elastic averaging SGD: workers and a server pull each other.

use super::{Algorithm, Assignment, Definition, Exchange, Links, LocalView, Method, Options, Outgoing, Plan, Vector};
use crate::config::ConfigError;
use crate::ids::WorkerId;

pub(super) const DEFINITION: Definition = Definition {
    name: "easgd",
    about: "every worker is pulled toward a server, which moves toward the mean of the workers",
    paper: "Zhang, Choromanska, LeCun 2015, Deep Learning with Elastic Averaging SGD",
    build: |options| Ok(Method::Synchronous(Box::new(Easgd::read(options)?))),
};

/// x_i' = x_i - u_i - alpha (x_i - c) and c' = (1 - beta) c + beta mean(x), with alpha = beta / n for
/// n workers.
///
/// ```
/// use upwash::algorithm::{Algorithm, Easgd, Exchange};
/// assert_eq!(Easgd { beta: 0.9, period: 1 }.exchanges(0), [Exchange::Server]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Easgd {
    /// The server's moving rate. 0 makes the workers independent.
    pub beta: f64,
    /// The number of rounds between exchanges.
    pub period: u64,
}

impl Easgd {
    pub(super) fn read(options: &mut Options<'_>) -> Result<Self, ConfigError> {
        let about = "the server's moving rate; each worker moves beta / workers toward it";
        let beta = options.number("beta", 0.9, 0.0..=1.0, about)?;
        let period = options.count("period", 1, "the number of steps between exchanges")?;
        Ok(Self { beta, period })
    }

    /// The new model of one of `workers` workers: x - u + alpha (c - x).
    pub(super) fn worker(self, worker: WorkerId, server: WorkerId, workers: usize) -> Assignment {
        let alpha = self.beta / workers as f64;
        let mut model = Assignment::of(Vector::Model, Outgoing::stepped().content);
        model.add(server, alpha);
        model.add(worker, -alpha);
        model
    }

    /// The new model of the server after messages from some of `workers` workers: c + alpha times the sum of (x - c).
    pub(super) fn server(self, server: WorkerId, senders: &[WorkerId], workers: usize) -> Assignment {
        let alpha = self.beta / workers as f64;
        let mut model = Assignment::of(Vector::Model, [(Vector::Model, 1.0)]);
        for &worker in senders {
            model.add(worker, alpha);
            model.add(server, -alpha);
        }
        model
    }
}

impl Algorithm for Easgd {
    fn messages(&self, _: &LocalView<'_>) -> Vec<Outgoing> {
        vec![Outgoing::model()]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let (workers, server) = (view.context.workers() - 1, view.context.server);
        let senders: Vec<WorkerId> = view.received.iter().map(|(sender, _)| *sender).collect();
        match senders[..] {
            [] if server == Some(view.worker) => Plan::default(),
            [] => Plan::alone(),
            _ if server == Some(view.worker) => self.server(view.worker, &senders, workers).into(),
            _ => self.worker(view.worker, senders[0], workers).into(),
        }
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        vec![if (round + 1).is_multiple_of(self.period) { Exchange::Server } else { Exchange::Nothing }]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn display_name(&self) -> String {
        format!("EASGD (beta {}, period {})", self.beta, self.period)
    }

    fn has_server(&self) -> bool {
        true
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
