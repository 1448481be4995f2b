//! Local SGD, also known as FedAvg: local steps, then an exact average.

use super::{Algorithm, Assignment, Definition, Exchange, Links, LocalView, Method, Plan, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "local-sgd",
    about: "a period of local steps, then an all-reduce of the models (FedAvg with full participation)",
    paper: "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks; Stich 2019",
    build: |options| {
        let period = options.count("period", 8, "H, the number of local steps between averages")?;
        Ok(Method::Synchronous(Box::new(LocalSgd { period })))
    },
};

/// X' = Y, and every `period`-th round X' = J Y.
///
/// ```
/// use upwash::algorithm::{Algorithm, Exchange, LocalSgd};
/// assert_eq!(LocalSgd { period: 2 }.exchanges(0), [Exchange::Nothing]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LocalSgd {
    /// The number of local steps between averages.
    pub period: u64,
}

impl Algorithm for LocalSgd {
    fn plan(&self, view: &LocalView<'_>) -> Plan {
        match self.exchanges(view.context.round.index())[0] {
            Exchange::Mean => Assignment::averaged(Vector::Model, 0).into(),
            _ => Plan::alone(),
        }
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        vec![if (round + 1).is_multiple_of(self.period) { Exchange::Mean } else { Exchange::Nothing }]
    }

    fn links(&self) -> Links {
        Links::None
    }

    fn display_name(&self) -> String {
        format!("local SGD (period {})", self.period)
    }

    fn starts_equal(&self) -> bool {
        true
    }
}
