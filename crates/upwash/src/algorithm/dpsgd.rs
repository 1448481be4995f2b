//! D-PSGD (Lian et al. 2017), and with a schedule that draws matchings MATCHA (Wang et al. 2019).

use super::{Algorithm, Message, Plan, View};

/// Adapt, then combine: X' = W (X - U), the paper's Eq. 2. Or combine, then adapt: X' = W X - U.
///
/// ```
/// use upwash::algorithm::{Algorithm, Dpsgd, Message};
/// assert_eq!(Dpsgd::default().message(), Message::Stepped);
/// assert_eq!(Dpsgd { overlap: true, lazy: true }.message(), Message::Early);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Dpsgd {
    /// Combine, then adapt: neighbours' models from before their step, so that the exchange runs
    /// while the gradient is computed.
    pub overlap: bool,
    /// (I + W)/2 for W. Without it, combining first diverges as soon as the rate times the loss's
    /// curvature passes 1 plus W's smallest eigenvalue.
    pub lazy: bool,
}

impl Algorithm for Dpsgd {
    fn message(&self) -> Message {
        if self.overlap {
            Message::Early
        } else {
            Message::Stepped
        }
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        let mut plan = Plan {
            messages: view.round.mixing().row(view.worker).to_vec(),
            own_update: self.message().own_update(),
        };
        if self.lazy {
            plan.scale(0.5);
            plan.add(view.worker, 0.5);
        }
        plan
    }
}
