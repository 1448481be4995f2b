//! What the training loop is told about its run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use upwash::run::{ControlFlow, Observer};
use upwash::transport::MembershipEvent;
use upwash::{Event, StopHandle};

/// How many events may wait until the loop takes them. The oldest ones go first.
const MAX_WAITING: usize = 256;

/// Warnings and what happened to other workers, until the loop takes them.
#[derive(Clone, Default)]
pub(super) struct Events {
    waiting: Arc<Mutex<VecDeque<String>>>,
    is_adopted: Arc<AtomicBool>,
}

impl Events {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Vec<String> {
        self.waiting().drain(..).collect()
    }

    /// Whether a model was adopted since the last call.
    pub(super) fn take_adopted(&self) -> bool {
        self.is_adopted.swap(false, Ordering::Relaxed)
    }
}

/// The observer of the run, which also ends it.
pub(super) struct Watch {
    pub(super) events: Events,
    pub(super) stop: StopHandle,
}

impl Observer for Watch {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Peer { change: MembershipEvent::Adopted { .. }, .. } = event {
            self.events.is_adopted.store(true, Ordering::Relaxed);
        }
        if matches!(event, Event::Warning { .. } | Event::Peer { .. })
            && let Ok(line) = serde_json::to_string(event)
        {
            let mut waiting = self.events.waiting();
            if waiting.len() == MAX_WAITING {
                waiting.pop_front();
            }
            waiting.push_back(line);
        }
        self.while_waiting()
    }

    fn while_waiting(&mut self) -> ControlFlow {
        match self.stop.is_stopped() {
            true => ControlFlow::Stop,
            false => ControlFlow::Continue,
        }
    }
}
