//! A conformance suite for transports. Every process of a run calls it with its own transport.
#![allow(clippy::unwrap_used)]

use upwash::WorkerId;
use upwash::algorithm::WorkerStats;
use upwash::transport::{Message, RoundStart, Transport};

/// The lengths of the messages, from empty to long.
const LENGTHS: [usize; 4] = [0, 1, 1000, 200_000];

/// A value of the message that worker `from` sends in a round. No other worker sends the same values.
fn value(from: WorkerId, round: u64, index: usize) -> f32 {
    (from.0 * 1000) as f32 + round as f32 + index as f32 / 1024.0
}

fn message(transport: &mut dyn Transport, from: WorkerId, round: u64, length: usize) -> Message {
    let mut values = transport.allocate(length);
    let content = values.iter_mut().enumerate();
    content.for_each(|(index, x)| *x = value(from, round, index));
    Message {
        from,
        round,
        exchange: 1,
        stats: WorkerStats { loss: (from.0 != 0).then_some(from.0 as f64 / 8.0), degree: from.0 + 1, scalar: 0.5 },
        whole: true,
        fresh: from.0 == 1,
        restart: (from.0 == 1).then_some(7),
        values,
    }
}

/// Checks the transport of one process. All other processes of the run must call it at the same time. Every worker
/// sends to the next worker and receives from the previous one.
///
/// # Panics
/// If a message does not arrive, or not as it was sent.
pub fn check_process(transport: &mut dyn Transport) {
    let placement = transport.placement().clone();
    let (workers, own) = (placement.workers(), placement.own());
    for (round, &length) in LENGTHS.iter().enumerate() {
        let round = round as u64;
        while transport.may_begin(round, false).unwrap() != RoundStart::Go {}
        let mut outgoing = Vec::new();
        for worker in own.clone() {
            let receiver = placement.process_of(WorkerId((worker.0 + 1) % workers));
            if receiver != placement.this() {
                let message = message(transport, worker, round, length);
                outgoing.push((message, vec![receiver]));
            }
        }
        let previous = own.clone().map(|worker| WorkerId((worker.0 + workers - 1) % workers));
        let expected: Vec<WorkerId> = previous.filter(|&worker| placement.row_of(worker).is_none()).collect();
        assert!(expected.iter().all(|&worker| transport.is_link_up(worker)));
        let sent = outgoing.len() as u64;
        let traffic = transport.traffic();
        transport.begin_exchange(outgoing, &expected).unwrap();
        let found = transport.finish_exchange(1).unwrap();
        let senders: Vec<WorkerId> = found.iter().map(|message| message.from).collect();
        assert_eq!(senders, expected, "round {round}");
        for found in found {
            let known = message(transport, found.from, round, length);
            assert_eq!(found, known, "round {round}, from {}", known.from);
        }
        let messages = transport.traffic().messages - traffic.messages;
        assert_eq!(messages, sent, "round {round}");
    }
    check_collectives(transport);
}

fn check_collectives(transport: &mut dyn Transport) {
    let placement = transport.placement().clone();
    let processes = placement.processes() as f32;
    let mut values = vec![1.0, placement.this() as f32];
    transport.all_reduce(7, &mut values).unwrap();
    assert_eq!(values, [processes, processes * (processes - 1.0) / 2.0]);
    let mut scalars = vec![f64::NAN; placement.workers()];
    placement.own().for_each(|worker| scalars[worker] = worker.0 as f64);
    transport.gather_scalars(&mut scalars).unwrap();
    let sum = transport.sum(1.0).unwrap();
    for (worker, scalar) in WorkerId::all(scalars.len()).zip(scalars) {
        let is_known = placement.row_of(worker).is_some() || !transport.capabilities().survives_loss;
        assert!(!is_known || scalar == worker.0 as f64, "{worker}: {scalar}");
    }
    assert!(sum.is_none_or(|sum| sum == f64::from(processes)));
}
