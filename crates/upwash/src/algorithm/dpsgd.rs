//! D-PSGD: a local step and a weighted average with the neighbors.

use super::{
    Algorithm, Assignment, Definition, Exchange, LocalView, Method, Options, Outgoing, Plan, Preflight, Variant, Vector,
};
use crate::config::ConfigError;
use upwash_topology::Weights;

pub(super) const DEFINITION: Definition = Definition {
    name: "dpsgd",
    about: "a local step, then a weighted average with the neighbors",
    paper: "Lian et al. 2017, Can Decentralized Algorithms Outperform Centralized Algorithms?",
    build: |options| Ok(Method::Synchronous(Box::new(Dpsgd::read(options)?))),
};

/// Adapt, then combine: X' = W (X - U), the paper's Eq. 2. Or combine, then adapt: X' = W X - U.
///
/// ```
/// use upwash::algorithm::{Algorithm, Dpsgd, Exchange};
/// assert_eq!(Dpsgd::default().exchanges(0), [Exchange::Neighbors]);
/// let overlap = Dpsgd { overlap: true, lazy: true, ..Default::default() };
/// assert_eq!(overlap.exchanges(0), [Exchange::Early]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Dpsgd {
    /// Combine, then adapt: uses the neighbors' models before their step, so that the exchange runs while the gradient
    /// is computed.
    pub overlap: bool,
    /// Whether to use (I + W)/2 instead of W. Without it, `overlap` diverges as soon as the rate times the curvature of
    /// the loss exceeds 1 plus the smallest eigenvalue of W.
    pub lazy: bool,
    /// Whether to use the links of the released code.
    pub released: bool,
    /// Whether W can have eigenvalues near -1.
    pub risky: bool,
}

impl Dpsgd {
    pub(super) fn read(options: &mut Options<'_>) -> Result<Self, ConfigError> {
        let about = "released: the links of the authors' code; sound and written: all links";
        let variant = options.choice("variant", &Variant::ALL, about)?;
        let about = "exchange models before the step, while the gradient is computed";
        let overlap = options.flag("overlap", false, about)?;
        let risky = overlap && options.graph.weights != Weights::Metropolis;
        let lazy = options.flag("lazy", risky, "use (I + W)/2 instead of W")?;
        Ok(Self { overlap, lazy, released: variant == Variant::Released, risky: risky && !lazy })
    }
}

impl Algorithm for Dpsgd {
    fn messages(&self, _: &LocalView<'_>) -> Vec<Outgoing> {
        vec![if self.overlap { Outgoing::model() } else { Outgoing::stepped() }]
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let mut model = Assignment::mixed(Vector::Model, view.weights(self.lazy));
        if self.overlap {
            model.add_own(Vector::Step, -1.0);
        }
        model.into()
    }

    fn exchanges(&self, _: u64) -> Vec<Exchange> {
        vec![if self.overlap { Exchange::Early } else { Exchange::Neighbors }]
    }

    fn display_name(&self) -> String {
        let overlap = if self.overlap { ", overlap" } else { "" };
        format!("D-PSGD{overlap}")
    }

    fn supports_leaders(&self) -> bool {
        true
    }

    fn supports_clipping(&self) -> bool {
        true
    }

    fn is_released(&self) -> bool {
        self.released
    }

    fn warnings(&self, _: &Preflight<'_>) -> Vec<String> {
        let risk = "algorithm.overlap without algorithm.lazy easily diverges, because W has eigenvalues near -1. \
                    Remove algorithm.lazy, or set graph.weights = \"metropolis\".";
        self.risky.then(|| risk.into()).into_iter().collect()
    }
}
