//! NoLoCo: DiLoCo without an all-reduce, in random pairs.

use super::{
    Algorithm, Assignment, Definition, Exchange, InitialValue, Links, LocalView, Method, Plan, StateVector, Vector,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "noloco",
    about: "a period of local steps, then an outer step with momentum toward the mean of a random pair; no all-reduce",
    paper: "Kolehmainen et al. 2025, NoLoCo: No-all-reduce Low Communication Training Method for Large Models",
    build: |options| {
        Ok(Method::Synchronous(Box::new(NoLoCo {
            period: options.count("period", 16, "the number of local steps between outer steps")?,
            rate: options.number("outer_rate", 0.7, 1e-9..=1.0, "eta, the outer learning rate")?,
            momentum: options.number("outer_momentum", 0.5, 0.0..=0.999, "mu, the outer momentum")?,
        })))
    },
};

/// X' = Y = X - U, and every `period`-th round, with the slow model A and the mean P over the worker and its partner of
/// this round: M' = mu M + eta (P Y - A), X' = A' = A + M'.
///
/// This is the paper's modified Nesterov step with equal coefficients of the outer gradient and of the slow models'
/// difference (beta = gamma = eta), so that only one vector travels.
///
/// ```
/// use upwash::algorithm::{Algorithm, Links, NoLoCo};
/// assert_eq!(NoLoCo { period: 2, rate: 0.7, momentum: 0.5 }.links(), Links::RandomPairs);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoLoCo {
    /// The number of local steps between outer steps.
    pub period: u64,
    /// The outer learning rate.
    pub rate: f64,
    /// The outer momentum.
    pub momentum: f64,
}

const SLOW: Vector = Vector::State(0);
const MOMENTUM: Vector = Vector::State(1);

impl Algorithm for NoLoCo {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        if self.exchanges(view.context.round.index())[0] == Exchange::Nothing {
            return Plan::alone();
        }
        let mut momentum = Assignment::mixed(MOMENTUM, view.weights(false));
        momentum.scale(self.rate);
        momentum.own = vec![(MOMENTUM, self.momentum), (SLOW, -self.rate)];
        [momentum, Assignment::of(SLOW, [(SLOW, 1.0), (MOMENTUM, 1.0)]), Assignment::of(Vector::Model, [(SLOW, 1.0)])]
            .into()
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        vec![if (round + 1).is_multiple_of(self.period) { Exchange::Neighbors } else { Exchange::Nothing }]
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        vec![
            StateVector { name: "slow model", start: InitialValue::Model },
            StateVector { name: "outer momentum", start: InitialValue::Zero },
        ]
    }

    fn links(&self) -> Links {
        Links::RandomPairs
    }

    fn display_name(&self) -> String {
        format!("NoLoCo (period {}, outer {}, {})", self.period, self.rate, self.momentum)
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
