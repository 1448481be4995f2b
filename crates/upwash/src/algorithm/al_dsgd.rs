//! AL-DSGD (He, Wang, Choromanska 2024): the plan of a base algorithm, plus pulls toward two leaders.

use super::{
    Algorithm, Definition, Exchange, LeaderCoefficients, LeaderScope, LocalView, Method, Options, Outgoing, Plan,
    Preflight, Variant,
};
use crate::config::ConfigError;

pub(super) const DEFINITION: Definition = Definition {
    name: "al-dsgd",
    about: "any base, with pulls toward the best and the best-connected neighbor",
    paper: "He, Wang, Choromanska 2024, Adjacent Leader Decentralized SGD",
    build,
};

/// AL-DSGD as a decorator of a base algorithm.
///
/// ```
/// use upwash::algorithm::{AlDsgd, Dpsgd, Variant};
/// let over_dpsgd = AlDsgd::new(Box::new(Dpsgd::default()), Variant::Released);
/// assert_eq!(over_dpsgd.pull.lambda_best, 0.2);
/// ```
#[derive(Debug)]
pub struct AlDsgd {
    /// The base algorithm.
    pub base: Box<dyn Algorithm>,
    /// The rule of the pulls.
    pub variant: Variant,
    /// The strengths of the pulls.
    pub pull: LeaderCoefficients,
    /// Which workers can lead.
    pub scope: LeaderScope,
}

impl AlDsgd {
    /// Uses the default coefficients of the variant. Every worker is a candidate for its own leader.
    pub fn new(base: Box<dyn Algorithm>, variant: Variant) -> Self {
        Self { base, variant, pull: LeaderCoefficients::default_of(variant), scope: LeaderScope::default() }
    }

    /// Whether workers do not see individual models in this exchange.
    fn hides_models(&self, view: &LocalView<'_>) -> bool {
        let exchanges = self.base.exchanges(view.context.round.index());
        !matches!(exchanges[view.context.exchange], Exchange::Neighbors | Exchange::Early)
    }
}

impl Algorithm for AlDsgd {
    fn base(&self) -> Option<&dyn Algorithm> {
        Some(&*self.base)
    }

    fn messages(&self, view: &LocalView<'_>) -> Vec<Outgoing> {
        match self.variant {
            Variant::Sound => self.base.messages(view),
            _ if self.hides_models(view) => self.base.messages(view),
            Variant::Written => vec![Outgoing::model()],
            Variant::Released => vec![Outgoing::stepped()],
        }
    }

    fn plan(&self, view: &LocalView<'_>) -> Plan {
        let mut plan = self.base.plan(view);
        if self.hides_models(view) || view.received.is_empty() && self.variant == Variant::Sound {
            return plan;
        }
        if view.received.is_empty() {
            return Plan::alone();
        }
        let (best, degree) = self.scope.leaders(view, self.variant);
        self.pull.apply(self.variant, plan.model(), view, [best, degree], &*self.base);
        plan.leaders = Some([best, degree]);
        plan
    }

    fn display_name(&self) -> String {
        format!("AL-DSGD ({}) over {}", self.variant.name(), self.base.display_name())
    }

    fn supports_clipping(&self) -> bool {
        self.base.supports_clipping()
    }

    fn verifies_leaders(&self) -> bool {
        self.scope == LeaderScope::Verified
    }

    fn needs_losses(&self) -> bool {
        true
    }

    fn is_released(&self) -> bool {
        self.variant == Variant::Released
    }

    fn warnings(&self, preflight: &Preflight<'_>) -> Vec<String> {
        let mut warnings = self.base.warnings(preflight);
        warnings.extend(self.variant.warning(preflight));
        warnings
    }
}

fn build(options: &mut Options<'_>) -> Result<Method, ConfigError> {
    let rule = "sound; written: the paper's Algorithm 1, literally; released: the authors' code and graphs";
    let variant = options.choice("variant", &Variant::ALL, rule)?;
    let base = options.base("dpsgd")?;
    if let Some((key, must)) = variant.conflict(&*base) {
        return Err(options.refuse(key, must));
    }
    Ok(Method::Synchronous(Box::new(AlDsgd {
        base,
        variant,
        scope: LeaderScope::read(options)?,
        pull: LeaderCoefficients::read(options, variant)?,
    })))
}
