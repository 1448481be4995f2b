//! D-PSGD (Lian et al. 2017): a local step and an average over the neighbours.
//!
//! Over a MATCHA schedule it is MATCHA, over one-peer exponential that, with full averages now and
//! then Gossip-PGA: the schedule says which links are up and which W holds, the algorithm uses them.

use super::{Algorithm, Message, Plan, View};

/// Adapt, then combine: X' = W (X - U), the paper's Eq. 2. Or combine, then adapt: X' = W X - U.
///
/// ```
/// use upwash::algorithm::{Algorithm, Dpsgd, Message};
/// assert_eq!(Dpsgd { combine_first: false }.message(), Message::Stepped);
/// assert_eq!(Dpsgd { combine_first: true }.message(), Message::Model);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Dpsgd {
    /// Combine, then adapt: neighbours' models from before their step, so that the exchange can run
    /// while the gradient is computed.
    pub combine_first: bool,
}

impl Algorithm for Dpsgd {
    fn message(&self) -> Message {
        if self.combine_first {
            Message::Model
        } else {
            Message::Stepped
        }
    }

    fn plan(&self, view: &View<'_>) -> Plan {
        let own_update = if self.combine_first { -1.0 } else { 0.0 };
        Plan {
            messages: view.round.mixing().row(view.worker).to_vec(),
            own_update,
        }
    }
}
