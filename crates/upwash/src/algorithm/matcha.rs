//! MATCHA: D-PSGD over matchings of the graph that are drawn in every round.

use super::{Algorithm, Definition, Dpsgd, Links, LocalView, Method, Plan};

pub(super) const DEFINITION: Definition = Definition {
    name: "matcha",
    about: "D-PSGD over randomly drawn matchings; important links are up more often",
    paper: "Wang et al. 2019, MATCHA: Speeding Up Decentralized SGD via Matching Decomposition",
    build: |options| {
        let about = "the expected fraction of matchings that are active in a round";
        let budget = options.number("budget", 0.5, 1e-9..=1.0, about)?;
        let base = Dpsgd::read(options)?;
        Ok(Method::Synchronous(Box::new(MatchaSgd { budget, base })))
    },
};

/// The schedule draws the matchings. The rest is D-PSGD.
///
/// ```
/// use upwash::algorithm::{Algorithm, MatchaSgd};
/// assert_eq!(MatchaSgd::default().display_name(), "MATCHA (budget 0.5)");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatchaSgd {
    /// The expected fraction of matchings that are active in a round. Links and bytes do not scale with it: budget 0.5
    /// on the paper's graph L1 uses 7.73 of its 12 links.
    pub budget: f64,
    /// The algorithm that runs over these links.
    pub base: Dpsgd,
}

impl Default for MatchaSgd {
    fn default() -> Self {
        let base = Dpsgd::default();
        Self { budget: 0.5, base }
    }
}

impl Algorithm for MatchaSgd {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&self.base)
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        self.base.plan(view)
    }

    fn links(&self) -> Links {
        let budget = self.budget;
        Links::Matcha { budget }
    }

    fn display_name(&self) -> String {
        let overlap = if self.base.overlap { ", overlap" } else { "" };
        format!("MATCHA (budget {}){overlap}", self.budget)
    }

    fn supports_leaders(&self) -> bool {
        true
    }

    fn supports_clipping(&self) -> bool {
        true
    }
}
