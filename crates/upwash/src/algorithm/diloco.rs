//! DiLoCo: many local steps, then a step of the mean model with outer Nesterov momentum.

use super::{
    Algorithm, Assignment, Definition, Exchange, InitialValue, Links, LocalView, Method, Plan, StateVector, Vector,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "diloco",
    about: "a period of local steps, then a Nesterov step from the last common model to the mean of the models",
    paper: "Douillard et al. 2023, DiLoCo: Distributed Low-Communication Training of Language Models",
    build: |options| {
        Ok(Method::Synchronous(Box::new(DiLoCo {
            period: options.count("period", 16, "H, the number of local steps between outer steps")?,
            rate: options.number("outer_rate", 0.7, 1e-9..=f64::MAX, "eta, the outer learning rate")?,
            momentum: options.number("outer_momentum", 0.9, 0.0..=0.999, "mu, the outer Nesterov momentum")?,
        })))
    },
};

/// X' = Y = X - U, and every `period`-th round, with the anchor A of the last outer step, the outer gradient D = A - J Y:
/// M' = mu M + D, X' = A' = A - eta (D + mu M').
///
/// ```
/// use upwash::algorithm::{Algorithm, DiLoCo, Exchange};
/// let diloco = DiLoCo { period: 2, rate: 0.7, momentum: 0.9 };
/// assert_eq!([0, 1].map(|k| diloco.exchanges(k)[0]), [Exchange::Nothing, Exchange::Mean]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DiLoCo {
    /// The number of local steps between outer steps.
    pub period: u64,
    /// The outer learning rate.
    pub rate: f64,
    /// The outer Nesterov momentum.
    pub momentum: f64,
}

const ANCHOR: Vector = Vector::State(0);
const MOMENTUM: Vector = Vector::State(1);

impl Algorithm for DiLoCo {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        if self.exchanges(view.context.round.index())[0] == Exchange::Nothing {
            return Plan::alone();
        }
        let (eta, mu) = (self.rate, self.momentum);
        let mean = |target, weight, own: &[(Vector, f64)]| {
            let assignment = Assignment::of(target, own);
            Assignment { mean: weight, ..assignment }
        };
        [
            mean(MOMENTUM, -1.0, &[(MOMENTUM, mu), (ANCHOR, 1.0)]),
            mean(Vector::Model, eta, &[(ANCHOR, 1.0 - eta), (MOMENTUM, -eta * mu)]),
            Assignment::of(ANCHOR, [(Vector::Model, 1.0)]),
        ]
        .into()
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        vec![if (round + 1).is_multiple_of(self.period) { Exchange::Mean } else { Exchange::Nothing }]
    }

    fn state_vectors(&self) -> Vec<StateVector> {
        vec![
            StateVector { name: "anchor", start: InitialValue::Model },
            StateVector { name: "outer momentum", start: InitialValue::Zero },
        ]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn display_name(&self) -> String {
        format!("DiLoCo (period {}, outer {}, {})", self.period, self.rate, self.momentum)
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
