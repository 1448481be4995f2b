//! Gossip-PGA: D-PSGD with a periodic exact average.

use super::{Algorithm, Assignment, Definition, Dpsgd, Exchange, LocalView, Method, Plan, Vector};

pub(super) const DEFINITION: Definition = Definition {
    name: "gossip-pga",
    about: "D-PSGD with a periodic all-reduce of the models",
    paper: "Chen et al. 2021, Accelerating Gossip SGD with Periodic Global Averaging",
    build: |options| {
        let period = options.count("period", 16, "the number of rounds between exact averages")?;
        let lazy = options.flag("lazy", false, "use (I + W)/2 instead of W")?;
        let base = Dpsgd { lazy, ..Default::default() };
        Ok(Method::Synchronous(Box::new(GossipPga { period, base })))
    },
};

/// X' = W Y, and every `period`-th round X' = J Y.
///
/// ```
/// use upwash::algorithm::{Algorithm, Exchange, GossipPga};
/// let pga = GossipPga { period: 4, base: Default::default() };
/// assert_eq!([2, 3].map(|k| pga.exchanges(k)[0]), [Exchange::Neighbors, Exchange::Mean]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GossipPga {
    /// The number of rounds between exact averages.
    pub period: u64,
    /// The algorithm of all other rounds.
    pub base: Dpsgd,
}

impl Algorithm for GossipPga {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&self.base)
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        match self.exchanges(view.context.round.index())[0] {
            Exchange::Mean => Assignment::averaged(Vector::Model, 0).into(),
            _ => self.base.plan(view),
        }
    }

    fn exchanges(&self, round: u64) -> Vec<Exchange> {
        if (round + 1).is_multiple_of(self.period) { vec![Exchange::Mean] } else { self.base.exchanges(round) }
    }

    fn display_name(&self) -> String {
        format!("Gossip-PGA (period {})", self.period)
    }

    fn supports_leaders(&self) -> bool {
        true
    }
}
