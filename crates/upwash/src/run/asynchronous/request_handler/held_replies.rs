//! Replies of a server that are held back until the slowest worker has caught up (bounded staleness).

use super::{REPLY, RequestHandler};
use crate::ids::WorkerId;
use crate::transport::{Message, TransportError};
use std::time::Instant;

/// A reply that is held back.
pub(super) struct HeldReply {
    pub(super) to: WorkerId,
    pub(super) message: Message,
    pub(super) since: Instant,
}

impl RequestHandler<'_, '_> {
    /// Whether the worker that waits for a reply may have given up on it, and ask again. Its wait began earlier, and the
    /// two requests may have taken different times to arrive.
    pub(super) fn is_given_up(&self, held: &HeldReply) -> bool {
        held.since.elapsed() >= self.worker.message_timeout() / 2
    }

    /// Whether a worker is too far ahead of the slowest active one. A worker that has rejoined far behind does not count.
    pub(super) fn is_ahead(&self, worker: WorkerId) -> bool {
        let Some(staleness) = self.worker.algorithm.staleness() else {
            return false;
        };
        let steps = self.active_neighbors().map(|other| self.steps_of(other));
        let slowest = steps.filter(|steps| *steps >= self.completed).min();
        self.steps_of(worker) >= slowest.unwrap_or(u64::MAX).saturating_add(staleness)
    }

    /// Sends the replies that need not be held back any longer.
    pub(super) fn release_replies(&mut self) -> Result<(), TransportError> {
        for held in std::mem::take(&mut self.held_replies) {
            if self.is_ahead(held.to) {
                self.held_replies.push(held);
            } else {
                let step = self.steps_of(held.to).max(1) - 1;
                self.send(held.to, step, REPLY, held.message)?;
            }
        }
        Ok(())
    }
}
