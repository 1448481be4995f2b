//! Epidemic Learning: each worker sends its model to a few random others.

use super::{Algorithm, Definition, Dpsgd, Links, LocalView, Method, Plan};

pub(super) const DEFINITION: Definition = Definition {
    name: "epidemic",
    about: "D-PSGD over a random directed graph in every round, in which each worker sends to a few others",
    paper: "de Vos et al. 2023, Epidemic Learning: Boosting Decentralized Learning with Randomized Communication",
    build: |options| {
        let fanout = options.count("fanout", 2, "s, the number of workers that each worker sends to in a round")?;
        Ok(Method::Synchronous(Box::new(Epidemic { fanout, base: Dpsgd::default() })))
    },
};

/// X' = W (X - U), where W gives equal weight to a worker's own model and to each that it has received. The schedule draws
/// the receivers; the graph gives only the number of workers. W does not preserve the average, except in expectation.
///
/// ```
/// use upwash::algorithm::{Algorithm, Epidemic, Links};
/// assert_eq!(Epidemic { fanout: 2, base: Default::default() }.links(), Links::RandomOut { fanout: 2 });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Epidemic {
    /// The number of workers that each worker sends to in a round.
    pub fanout: u64,
    /// The algorithm that runs over these links.
    pub base: Dpsgd,
}

impl Algorithm for Epidemic {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&self.base)
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        self.base.plan(view)
    }

    fn links(&self) -> Links {
        Links::RandomOut { fanout: self.fanout }
    }

    fn display_name(&self) -> String {
        format!("Epidemic Learning (fanout {})", self.fanout)
    }
}
