//! Limits how many refusals are reported one by one: a stranger must not fill the disk with events.

use super::Time;
use std::time::Duration;
use upwash::transport::MembershipEvent;

/// Refusals that are reported one by one in each [`WINDOW`].
const REPORTED: u64 = 20;
const WINDOW: Duration = Duration::from_secs(60);

/// Counts refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    window: Option<Time>,
    in_window: u64,
    unreported: u64,
}

impl Refusals {
    /// Counts a refusal. Returns what to report.
    pub(super) fn add(&mut self, what: String, now: Time) -> Vec<MembershipEvent> {
        let mut events = self.report(now);
        self.window.get_or_insert(now);
        self.in_window += 1;
        if self.in_window <= REPORTED {
            events.push(MembershipEvent::Refused { what });
        } else {
            self.unreported += 1;
        }
        events
    }

    /// Reports at the end of a window how many refusals were not reported.
    pub(super) fn report(&mut self, now: Time) -> Vec<MembershipEvent> {
        if self.window.is_none_or(|start| now < start + WINDOW) {
            return vec![];
        }
        let count = std::mem::take(self).unreported;
        (count > 0).then_some(MembershipEvent::MoreRefused { count }).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_becomes_few_events() {
        let mut refusals = Refusals::default();
        let mut events = vec![];
        for k in 0..600_000 {
            events.extend(refusals.add(format!("refusal {k}"), Duration::from_millis(k)));
        }
        events.extend(refusals.report(Duration::from_secs(600)));
        let counted: u64 = events
            .iter()
            .map(|event| if let MembershipEvent::MoreRefused { count } = event { *count } else { 1 })
            .sum();
        assert_eq!(counted, 600_000, "each refusal is reported or counted");
        assert_eq!(events.len(), 10 * 21);
    }
}
