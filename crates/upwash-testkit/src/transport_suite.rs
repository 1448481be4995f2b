//! A conformance suite for transports: what every process of a run does with its own.
#![allow(clippy::unwrap_used)]

use upwash::algorithm::WorkerStats;
use upwash::transport::{Message, RoundStart, Transport};

/// Numbers of the messages, from none to many.
const LENGTHS: [usize; 4] = [0, 1, 1000, 200_000];

/// What worker `from` sends in a round: nobody else sends the same.
fn number(from: usize, round: u64, index: usize) -> f32 {
    (from * 1000) as f32 + round as f32 + index as f32 / 1024.0
}

fn message(transport: &mut dyn Transport, from: usize, round: u64, length: usize) -> Message {
    let mut numbers = transport.allocate(length);
    let content = numbers.iter_mut().enumerate();
    content.for_each(|(index, x)| *x = number(from, round, index));
    Message {
        from,
        round,
        exchange: 1,
        stats: WorkerStats { loss: (from != 0).then_some(from as f64 / 8.0), degree: from + 1, scalar: 0.5 },
        whole: true,
        fresh: from == 1,
        values: numbers,
    }
}

/// Checks one process of a run; all others must do the same at the same time. Every worker sends to the next one and hears
/// the one before.
///
/// # Panics
/// If something does not arrive, or not as it was sent.
pub fn check_process(transport: &mut dyn Transport) {
    let placement = transport.placement().clone();
    let (workers, own) = (placement.workers(), placement.own());
    for (round, &length) in LENGTHS.iter().enumerate() {
        let round = round as u64;
        while transport.may_begin(round, false).unwrap() != RoundStart::Go {}
        let mut outgoing = Vec::new();
        for worker in own.clone() {
            let place = placement.process_of((worker + 1) % workers);
            if place != placement.this() {
                let message = message(transport, worker, round, length);
                outgoing.push((message, vec![place]));
            }
        }
        let before = own.clone().map(|worker| (worker + workers - 1) % workers);
        let expected: Vec<usize> = before.filter(|worker| !own.contains(worker)).collect();
        assert!(expected.iter().all(|&worker| transport.is_link_up(worker)));
        let sent = outgoing.len() as u64;
        let traffic = transport.traffic();
        transport.begin_exchange(outgoing, &expected).unwrap();
        let found = transport.finish_exchange(1).unwrap();
        let senders: Vec<usize> = found.iter().map(|message| message.from).collect();
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
    let mut numbers = vec![1.0, placement.this() as f32];
    transport.all_reduce(7, &mut numbers).unwrap();
    assert_eq!(numbers, [processes, processes * (processes - 1.0) / 2.0]);
    let mut scalars = vec![f64::NAN; placement.workers()];
    placement.own().for_each(|worker| scalars[worker] = worker as f64);
    transport.gather_scalars(&mut scalars).unwrap();
    let sum = transport.sum(1.0).unwrap();
    for (worker, scalar) in scalars.into_iter().enumerate() {
        let is_known = placement.own().contains(&worker) || !transport.capabilities().survives_loss;
        assert!(!is_known || scalar == worker as f64, "{worker}: {scalar}");
    }
    assert!(sum.is_none_or(|sum| sum == f64::from(processes)));
}
