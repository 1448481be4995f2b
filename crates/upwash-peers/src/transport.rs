//! The traits of a transport, on top of the protocol and a runtime. Their methods are many and short.

use crate::frame::model_to_bytes;
use crate::protocol::{Awaited, LinkId, Protocol, Start, Time};
use crate::runtime::Runtime;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use upwash::WorkerId;
use upwash::engine::State;
use upwash::transport::{
    Buffer, Capabilities, Collectives, Membership, MembershipEvent, Message, MessageExchange, Participation, Placement,
    Pool, RoundStart, Traffic, TransportError,
};

/// Maximum time for which waiting for neighbors keeps the round loop from checking for control requests.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A transport between peers, over any runtime.
pub struct PeerTransport<R: Runtime> {
    runtime: R,
    own: usize,
    placement: Placement,
    pool: Pool,
    /// Workers are peers here, which have numbers. For each, its link, if it is up in this round.
    links: Vec<Option<LinkId>>,
    expected: Vec<usize>,
    round: u64,
    has_started: bool,
    /// Whether the run ended before its last round.
    ended_early: bool,
    /// The worker whose model was to be adopted last.
    adopted_from: usize,
}

impl<R: Runtime> PeerTransport<R> {
    pub(crate) fn over(runtime: R, own: usize, workers: usize, pool: Pool) -> Self {
        Self {
            runtime,
            own,
            placement: Placement::new(workers, workers, own),
            pool,
            links: vec![None; workers],
            expected: vec![],
            round: 0,
            has_started: false,
            ended_early: false,
            adopted_from: own,
        }
    }

    /// Waits for the messages with this round and exchange from those workers whose links are up.
    fn collect(&mut self, from: &[usize], tag: (u64, u32)) -> Vec<Message> {
        let since = self.runtime.call(|_, now| now);
        let mut messages = Vec::new();
        for &worker in from {
            let Some(link) = self.links[worker] else {
                continue;
            };
            if let Some(message) = self.wait_for_message(worker, link, tag, since) {
                messages.push(message);
            }
        }
        self.runtime.call(|protocol, _| protocol.exchange_is_over(since));
        messages
    }

    /// Waits for a message. If it does not arrive in time, its sender is lost.
    fn wait_for_message(&self, worker: usize, link: LinkId, tag: (u64, u32), since: Time) -> Option<Message> {
        loop {
            let poll = |protocol: &mut Protocol, now: Time| {
                let deadline = protocol.message_deadline(worker, since);
                let awaited = protocol.poll_message(worker, link, tag, now);
                if awaited == Awaited::Pending && now >= deadline {
                    let seconds = (now - since).as_secs_f64();
                    let why = format!("it sent no message for round {} within {seconds:.1} seconds", tag.0);
                    protocol.close_late(worker, link.0, why, now - since, now);
                }
                (awaited, deadline, protocol.version())
            };
            match self.runtime.call(poll) {
                (Awaited::Message(message), ..) => return Some(message),
                (Awaited::Missing, ..) => return None,
                (Awaited::Pending, deadline, version) => self.runtime.wait(version, deadline),
            }
        }
    }

    fn post(&self, message: Message, to: &[usize]) {
        let message = Arc::new(message);
        let links = to.iter().filter_map(|&worker| Some((worker, self.links[worker]?)));
        let links: Vec<(usize, LinkId)> = links.collect();
        self.runtime.call(|protocol, _| {
            for (worker, link) in links {
                protocol.post(worker, link.0, &message);
            }
        });
    }
}

impl<R: Runtime> Drop for PeerTransport<R> {
    /// Tells the other peers that this one has finished, or that it leaves.
    fn drop(&mut self) {
        let ends_early = self.ended_early;
        self.runtime.call(|protocol, _| protocol.say_goodbye(ends_early));
    }
}

impl<R: Runtime> Membership for PeerTransport<R> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: true, authenticated: true, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn may_begin(&mut self, round: u64, stop: bool) -> Result<RoundStart, TransportError> {
        if stop {
            self.ended_early = true;
            return Ok(RoundStart::Stop);
        }
        if !std::mem::replace(&mut self.has_started, true) {
            self.runtime.call(|protocol, now| protocol.start(round, now));
            self.runtime.start();
        }
        let until = self.runtime.call(|_, now| now + POLL_INTERVAL);
        let start = self.runtime.wait_for(until, |protocol, now| match protocol.may_begin(round, now) {
            Start::Wait => None,
            start => Some(start),
        });
        Ok(match start {
            None | Some(Start::Wait) => RoundStart::Wait,
            Some(Start::Go(links)) => {
                (self.links, self.round) = (links, round);
                RoundStart::Go
            }
            Some(Start::Adopt(adoption)) => {
                self.adopted_from = adoption.from.0;
                RoundStart::Adopt(adoption)
            }
            Some(Start::Isolated) => {
                self.ended_early = true;
                RoundStart::Isolated
            }
        })
    }

    fn adopted(&mut self, round: u64) {
        let from = self.adopted_from;
        self.runtime.call(|protocol, now| protocol.adopted(from, round, now));
        self.links.fill(None);
    }

    fn changed_links(&mut self) -> Vec<WorkerId> {
        let changed = self.runtime.call(|protocol, _| protocol.take_changed_links());
        changed.into_iter().map(WorkerId).collect()
    }

    fn restore_participation(&mut self, participation: Participation) {
        self.runtime.call(|protocol, _| protocol.restore(participation));
    }

    fn participation(&self) -> Option<Participation> {
        Some(self.runtime.call(|protocol, now| protocol.participation(now)))
    }

    fn leave(&mut self, _: WorkerId, _: u64) -> Result<(), TransportError> {
        self.ended_early = true;
        Ok(())
    }

    fn is_link_up(&self, worker: WorkerId) -> bool {
        worker.0 == self.own || self.links[worker].is_some()
    }

    fn is_connected(&self, worker: WorkerId) -> bool {
        self.runtime.call(|protocol, _| protocol.connection(worker.0).is_some())
    }

    fn refuse(&mut self, worker: WorkerId, why: String) {
        self.links[worker] = None;
        self.runtime.call(|protocol, now| {
            protocol.record_refusal(format!("worker {worker}: {why}"), now);
            if let Some(id) = protocol.connection(worker.0) {
                protocol.close(worker.0, id, why);
            }
        });
    }

    fn state_requested(&self) -> bool {
        self.runtime.call(|protocol, _| protocol.is_model_wanted())
    }

    fn send_state(&mut self, round: u64, state: State) {
        let model = model_to_bytes(round, &state);
        self.runtime.call(|protocol, now| protocol.send_model(model, now));
    }

    fn membership_events(&mut self) -> Vec<MembershipEvent> {
        self.runtime.call(|protocol, _| protocol.take_events())
    }
}

impl<R: Runtime> MessageExchange for PeerTransport<R> {
    fn allocate(&mut self, length: usize) -> Buffer {
        self.pool.allocate(length)
    }

    fn begin_exchange(
        &mut self,
        outgoing: Vec<(Message, Vec<usize>)>,
        expected: &[WorkerId],
    ) -> Result<(), TransportError> {
        for (message, receivers) in outgoing {
            self.post(message, &receivers);
        }
        self.expected = expected.iter().map(|worker| worker.0).collect();
        Ok(())
    }

    fn finish_exchange(&mut self, exchange: u32) -> Result<Vec<Message>, TransportError> {
        let expected = std::mem::take(&mut self.expected);
        Ok(self.collect(&expected, (self.round, exchange)))
    }

    fn send(&mut self, to: WorkerId, message: Message) -> Result<bool, TransportError> {
        let (to, message) = (to.0, Arc::new(message));
        Ok(self.runtime.call(|protocol, _| {
            let id = protocol.connection(to);
            id.inspect(|&id| protocol.post(to, id, &message)).is_some() && protocol.connection(to) == id
        }))
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        let until = self.runtime.call(|_, now| now + wait);
        let found = self.runtime.wait_for(until, |protocol, _| {
            let found = protocol.take_messages();
            (!found.is_empty()).then_some(found)
        });
        Ok(found.unwrap_or_default())
    }

    fn traffic(&self) -> Traffic {
        let messages = self.runtime.call(|protocol, _| protocol.messages_sent);
        Traffic { bytes: self.runtime.bytes().0, messages }
    }
}

impl<R: Runtime> Collectives for PeerTransport<R> {
    /// Every worker sends its values to all others and sums those that arrive, in the order of the workers.
    fn all_reduce(&mut self, exchange: u32, values: &mut [f32]) -> Result<(), TransportError> {
        let round = self.round;
        let message = Message {
            from: self.own.into(),
            round,
            exchange,
            stats: upwash::algorithm::WorkerStats { loss: None, degree: 0, scalar: 1.0 },
            whole: true,
            fresh: false,
            restart: None,
            values: values.to_vec().into(),
        };
        let all_workers: Vec<usize> = (0..self.links.len()).collect();
        self.post(message, &all_workers);
        let mut received: BTreeMap<WorkerId, Buffer> = BTreeMap::new();
        for message in self.collect(&all_workers, (round, exchange)) {
            let usable = message.values.len() == values.len();
            if usable && message.values.iter().all(|value| value.is_finite()) {
                received.insert(message.from, message.values);
            } else {
                self.refuse(message.from, "its all-reduce message has the wrong length or is not finite".into());
            }
        }
        received.insert(self.own.into(), values.to_vec().into());
        values.fill(0.0);
        for theirs in received.into_values() {
            values.iter_mut().zip(theirs.iter()).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }

    fn gather_scalars(&mut self, _: &mut [f64]) -> Result<(), TransportError> {
        Ok(())
    }

    fn sum(&mut self, _: f64) -> Result<Option<f64>, TransportError> {
        Ok(None)
    }
}
