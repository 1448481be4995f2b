//! Tests of the protocol of one worker, whose neighbors are played by the test.

#![allow(clippy::unwrap_used)]

use super::peer::{Connection, MAX_CONNECTIONS, MAX_CONTROL_FRAMES};
use super::{
    ANNOUNCEMENT, Action, Awaited, MAX_EVENTS, MAX_QUEUED, MAX_UNSENT, MAX_UNSENT_MESSAGES, Outbound, Protocol,
    ProtocolConfig, Start, Time, Violation,
};
use crate::Timings;
use crate::frame::{Frame, Kind, View};
use std::time::Duration;
use upwash::WorkerId;
use upwash::algorithm::WorkerStats;
use upwash::transport::{MembershipEvent, Message};

const SECOND: Duration = Duration::from_secs(1);
const NOW: Time = Duration::from_secs(1000);

impl Protocol {
    /// Requests a model, and sends one over the same connection.
    pub(crate) fn exchange_models(&mut self, worker: usize, id: u64, model: Vec<u8>, now: Time) {
        self.on_frame(worker, id, Frame::ModelRequest, now).unwrap();
        self.send_model(model, now);
        self.request_model(vec![worker], now);
    }

    /// How many sixteenths of models have been written and read.
    pub(crate) fn parts(&self) -> (Option<u64>, Option<u64>) {
        (self.serving.as_ref().map(|sent| sent.parts), self.fetch.as_ref().map(|fetch| fetch.transfer.parts))
    }

    /// Whether all that is held for other workers is within its bounds.
    pub(crate) fn is_within_bounds(&self) -> bool {
        let fits = |connection: &Connection| {
            connection.inbox.len() <= MAX_QUEUED
                && connection.unwritten <= MAX_UNSENT
                && connection.unwritten_messages <= MAX_UNSENT_MESSAGES
        };
        let connections = || self.peers.iter().filter_map(|peer| peer.connection.as_ref());
        let models = connections().filter(|connection| connection.unwritten_model).count();
        let due = connections().filter(|connection| connection.model_due).count();
        connections().all(fits) && models <= 1 && due <= 1 && self.events.len() <= MAX_EVENTS
    }
}

/// Worker 0 of a complete graph, in round `next` of 1,000.
fn worker_0(workers: usize, next: u64) -> Protocol {
    worker_0_with((1..workers).collect(), workers, next)
}

fn worker_0_with(neighbors: Vec<usize>, workers: usize, next: u64) -> Protocol {
    let config = ProtocolConfig {
        own: 0,
        workers,
        neighbors,
        rounds: 1000,
        has_rounds: true,
        has_end: true,
        timings: Timings::default(),
    };
    let mut protocol = Protocol::new(config);
    protocol.start(next, NOW);
    protocol
}

fn message(from: usize, round: u64, exchange: u32) -> Message {
    Message {
        from: from.into(),
        round,
        exchange,
        stats: WorkerStats { loss: None, degree: 1, scalar: 1.0 },
        whole: exchange != ANNOUNCEMENT,
        fresh: false,
        restart: None,
        values: vec![].into(),
    }
}

#[test]
fn models_are_sent_in_turn() {
    let mut protocol = worker_0(4, 0);
    let ids: Vec<u64> = (1..4).map(|worker| protocol.on_connected(worker, NOW).unwrap()).collect();
    let mut served = vec![];
    for _ in 0..6 {
        // All ask all the time.
        for worker in 1..4 {
            protocol.on_frame(worker, ids[worker - 1], Frame::ModelRequest, NOW).unwrap();
        }
        protocol.send_model(vec![1], NOW);
        let worker = protocol.last_served;
        served.push(worker);
        assert!(!protocol.is_model_wanted(), "one at a time");
        protocol.on_written(worker, ids[worker - 1], Kind::Model);
    }
    assert_eq!(served, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_model_that_is_read_slowly_is_sent_and_one_that_is_not_read_ends_the_connection() {
    let mut protocol = worker_0(2, 0);
    let id = protocol.on_connected(1, NOW).unwrap();
    protocol.on_frame(1, id, Frame::ModelRequest, NOW).unwrap();
    protocol.send_model(vec![1], NOW);
    let mut now = NOW;
    for part in 1..=8 {
        now += 50 * SECOND;
        protocol.on_heard(1, id, now);
        protocol.on_model_written(1, id, 100 * part, 1600, now);
        protocol.on_tick(now);
        assert!(protocol.connection(1).is_some(), "part {part}");
    }
    // A few bytes are no progress.
    for _ in 0..2 {
        now += 30 * SECOND;
        protocol.on_heard(1, id, now);
        protocol.on_model_written(1, id, 810, 1600, now);
        protocol.on_tick(now);
    }
    assert_eq!(protocol.connection(1), None);
}

/// Lets the neighbor `worker` show a round over its connection, as a member of a side of itself alone.
fn show(protocol: &mut Protocol, worker: usize, round: u64, now: Time) {
    let id = protocol.connection(worker).unwrap();
    let view = View { round, rounds_together: 2000, members: vec![(worker as u32, 0)], ..View::default() };
    protocol.on_frame(worker, id, Frame::Heartbeat(view), now).unwrap();
    protocol.on_frame(worker, id, Frame::Message(message(worker, round, ANNOUNCEMENT)), now).unwrap();
}

/// A worker without a link waits for all neighbors to show their rounds, each for some time since it was lost itself.
#[test]
fn a_neighbor_that_was_lost_just_now_is_waited_for() {
    let mut protocol = worker_0(3, 100);
    let ids = [1, 2].map(|worker| protocol.on_connected(worker, NOW).unwrap());
    show(&mut protocol, 1, 500, NOW);
    assert!(protocol.target(NOW).is_none(), "worker 2 has not shown its round");
    show(&mut protocol, 2, 101, NOW);
    assert!(protocol.target(NOW).is_none(), "the nearer of two rounds counts");
    // Worker 2 is gone for a moment, a minute after the first connection.
    let minute = NOW + 60 * SECOND;
    protocol.on_heard(2, ids[1], minute);
    protocol.on_disconnected(2, ids[1], "it closed the connection".into());
    assert!(protocol.target(minute + 4 * SECOND).is_none(), "it may return");
    let target = protocol.target(minute + 5 * SECOND).unwrap();
    assert_eq!((target.round, target.shown), (500, vec![(1, 500)]));
    // It returns, and has the same time to show its round.
    protocol.on_connected(2, minute + 6 * SECOND).unwrap();
    assert!(protocol.target(minute + 7 * SECOND).is_none());
    assert!(protocol.target(minute + 11 * SECOND).is_some());
}

/// The only neighbor shows a distant round, and never sends the model that it is asked for. It does not hold up this
/// worker without end.
#[test]
fn a_withheld_model_isolates_the_only_neighbor() {
    let mut protocol = worker_0(2, 0);
    let (mut now, mut requests) = (NOW, 0);
    let start = loop {
        now += SECOND;
        if protocol.connection(1).is_none() {
            protocol.on_connected(1, now).unwrap();
        }
        show(&mut protocol, 1, 500, now);
        protocol.on_tick(now);
        match protocol.may_begin(0, now) {
            Start::Wait => {}
            start => break start,
        }
        let asks =
            |action: &Action| matches!(action, Action::Send { frame: Outbound::Content(Kind::ModelRequest, _), .. });
        requests += protocol.take_actions().iter().filter(|action| asks(action)).count();
        assert!(now < NOW + 600 * SECOND, "it waits without end");
    };
    assert_eq!((start, requests), (Start::Isolated, 2));
    assert!(protocol.participation(now).seconds_alone >= 120.0);
    let events = protocol.take_events();
    assert!(events.iter().any(|event| matches!(event, MembershipEvent::Waiting { .. })));
    assert!(events.iter().any(|event| matches!(event, MembershipEvent::FetchFailed { worker: WorkerId(1), .. })));
}

/// What a worker says about neighbors of the receiver does not count: they speak for themselves.
#[test]
fn neighbors_are_members_only_by_what_they_say_themselves() {
    let mut protocol = worker_0_with(vec![1, 2, 3], 6, 10);
    let id = protocol.on_connected(1, NOW).unwrap();
    protocol.may_begin(10, NOW);
    protocol.on_frame(1, id, Frame::Offer(10), NOW).unwrap();
    let everybody =
        View { rounds_together: 2000, members: (0..6).map(|worker| (worker, 0)).collect(), ..View::default() };
    protocol.on_frame(1, id, Frame::Heartbeat(everybody.clone()), NOW).unwrap();
    let own = protocol.side(NOW);
    assert_eq!(own, [true, true, false, false, true, true], "workers 2 and 3 have said nothing");
    protocol.on_connected(2, NOW).unwrap();
    assert!(!protocol.is_beaten_by(2, &everybody, &own), "worker 3 is not there, and worker 1 is on this side");
    let others = View { members: vec![(2, 0), (3, 0)], ..everybody };
    assert!(!protocol.is_beaten_by(2, &others, &own[..4].iter().copied().chain([false; 2]).collect::<Vec<_>>()));
    protocol.on_connected(3, NOW).unwrap();
    assert!(protocol.is_beaten_by(2, &others, &[true, false, false, false, false, false]));
}

#[test]
fn a_goodbye_counts_only_near_the_last_round() {
    for (round, claimed, counts) in [
        (500, Some(500), false),
        (500, Some(999), false),
        (500, None, false),
        (985, Some(985), true),
        (985, None, true),
    ] {
        let mut protocol = worker_0(2, round);
        let id = protocol.on_connected(1, NOW).unwrap();
        assert_eq!(protocol.may_begin(round, NOW), Start::Wait);
        protocol.on_frame(1, id, Frame::Offer(round), NOW).unwrap();
        assert!(matches!(protocol.may_begin(round, NOW), Start::Go(_)));
        if let Some(claimed) = claimed {
            protocol.on_frame(1, id, Frame::Message(message(1, claimed, 1)), NOW).unwrap();
        }
        protocol.on_frame(1, id, Frame::Goodbye, NOW).unwrap();
        assert_eq!(protocol.needs_no_link(), counts, "round {round}, claimed {claimed:?}");
        protocol.on_disconnected(1, id, "it closed the connection".into());
        assert_eq!(protocol.needs_no_link(), counts, "round {round}, claimed {claimed:?}");
    }
}

/// Training loops that do not know their length end when they like.
#[test]
fn a_goodbye_counts_in_any_round_of_a_run_without_an_end() {
    let mut protocol = worker_0(2, 500);
    protocol.config.has_end = false;
    let id = protocol.on_connected(1, NOW).unwrap();
    assert_eq!(protocol.may_begin(500, NOW), Start::Wait);
    protocol.on_frame(1, id, Frame::Offer(500), NOW).unwrap();
    assert!(matches!(protocol.may_begin(500, NOW), Start::Go(_)));
    protocol.on_frame(1, id, Frame::Goodbye, NOW).unwrap();
    assert!(protocol.needs_no_link());
}

#[test]
fn floods_of_old_messages_are_refused() {
    let mut protocol = worker_0(2, 500);
    let id = protocol.on_connected(1, NOW).unwrap();
    let mut send = |exchange: u32| protocol.on_frame(1, id, Frame::Message(message(1, 3, exchange)), NOW);
    let accepted = (0..MAX_CONTROL_FRAMES + 1).take_while(|exchange| send(*exchange).is_ok()).count();
    assert_eq!(accepted, MAX_CONTROL_FRAMES as usize);
    let refused = send(MAX_CONTROL_FRAMES + 2);
    assert_eq!(refused, Err(Violation("too many messages of earlier rounds in a second".into())));
}

/// A worker that is on the way to a link runs ten rounds, and then pauses, so that a link can come up.
#[test]
fn a_worker_pauses_if_each_offer_is_too_late() {
    let mut protocol = worker_0(2, 100);
    let id = protocol.on_connected(1, NOW).unwrap();
    let (mut round, mut now) = (100, NOW);
    for _ in 0..3 {
        let first = round;
        loop {
            // The link would always come up a few rounds later.
            protocol.on_frame(1, id, Frame::Offer(round + 5), now).unwrap();
            match protocol.may_begin(round, now) {
                Start::Go(links) => assert_eq!(links, [None, None]),
                Start::Wait => break,
                start => panic!("{start:?}"),
            }
            round += 1;
        }
        assert_eq!(round - first, 10);
        now += Timings::default().failure_timeout / 2;
    }
    // An offer that is in time ends it.
    let own = protocol.peers[1].connection.as_ref().unwrap().own_offer.unwrap();
    protocol.on_frame(1, id, Frame::Offer(own.max(round)), now).unwrap();
    assert!(matches!(protocol.may_begin(round, now), Start::Go(_)));
}

#[test]
fn missing_neighbors_are_reported_when_the_time_to_start_is_over() {
    let mut protocol = worker_0(3, 0);
    let id = protocol.on_connected(1, NOW).unwrap();
    assert_eq!(protocol.may_begin(0, NOW), Start::Wait);
    protocol.on_frame(1, id, Frame::Offer(0), NOW).unwrap();
    protocol.record_unreachable(2, "connection refused".into());
    let almost = NOW + 29 * SECOND;
    assert_eq!(protocol.may_begin(0, almost), Start::Wait);
    let late = NOW + 30 * SECOND;
    assert!(matches!(protocol.may_begin(0, late), Start::Go(_)));
    let why = "connection refused".to_string();
    assert!(protocol.take_events().contains(&MembershipEvent::Missing { worker: WorkerId(2), why }));
}

/// A message that was not taken before its sender connects again does not count any more: it may be of another process,
/// with another model.
#[test]
fn messages_of_an_earlier_connection_do_not_count() {
    for (has_finished, is_lost_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("finished: {has_finished}, lost first: {is_lost_first}");
        let mut protocol = worker_0(2, 990);
        let connect = |protocol: &mut Protocol, round: u64| {
            let id = protocol.on_connected(1, NOW).unwrap();
            protocol.make_offers(NOW);
            protocol.on_frame(1, id, Frame::Offer(round), NOW).unwrap();
            id
        };
        let first = connect(&mut protocol, 990);
        let Start::Go(links) = protocol.may_begin(990, NOW) else { panic!("{case}: no link") };
        // Its sender is a round ahead.
        let (link, tag) = (links[1].unwrap(), (991, 1));
        let old = message(1, tag.0, tag.1);
        protocol.on_frame(1, first, Frame::Message(old), NOW).unwrap();
        if has_finished {
            protocol.on_frame(1, first, Frame::Goodbye, NOW).unwrap();
        }
        if is_lost_first {
            protocol.on_disconnected(1, first, "it closed the connection".into());
        }
        let second = connect(&mut protocol, 991);
        assert_eq!(protocol.poll_message(1, link, tag, NOW), Awaited::Missing, "{case}");
        let Start::Go(links) = protocol.may_begin(991, NOW) else { panic!("{case}: no new link") };
        assert_eq!(links[1], Some((second, 991)), "{case}");
        let link = links[1].unwrap();
        assert_eq!(protocol.poll_message(1, link, tag, NOW), Awaited::Pending, "{case}");
        // Nor is it among the messages that an asynchronous worker takes.
        assert_eq!(protocol.take_messages(), [], "{case}");
        let new = message(1, tag.0, tag.1);
        protocol.on_frame(1, second, Frame::Message(new.clone()), NOW).unwrap();
        assert_eq!(protocol.poll_message(1, link, tag, NOW), Awaited::Message(new), "{case}");
    }
}

/// The clock alone ends a silent connection, whatever the task that reads it does.
#[test]
fn a_silent_connection_ends_by_the_clock() {
    let mut protocol = worker_0(2, 0);
    let id = protocol.on_connected(1, NOW).unwrap();
    let timeout = Timings::default().failure_timeout;
    protocol.on_heard(1, id, NOW + SECOND);
    protocol.on_tick(NOW + timeout);
    assert!(protocol.connection(1).is_some());
    protocol.on_tick(NOW + SECOND + timeout);
    assert_eq!(protocol.connection(1), None);
    let why = "nothing was received for 5 seconds".to_string();
    assert!(protocol.take_events().contains(&MembershipEvent::Lost { worker: 1.into(), why }));
}

/// Two processes with copies of one key take each other's connection away. Each of them connects at most sixty times a
/// minute, few events say so, and when one of them has ended, the other stays connected.
#[test]
fn two_processes_with_one_key_connect_at_a_limited_rate() {
    let mut protocol = worker_0(2, 0);
    let (mut accepted, mut events) = (0, 0);
    // Twenty times a second for two minutes.
    let start = Duration::from_secs(60 * 20);
    for attempt in 0..2400 {
        let now = start + attempt * SECOND / 20;
        accepted += u32::from(protocol.on_connected(1, now).is_some());
        if let Some(id) = protocol.connection(1) {
            protocol.on_heard(1, id, now);
        }
        protocol.on_tick(now);
        assert!(protocol.connection(1).is_some(), "the last connection that was accepted is in use");
        events += protocol.take_events().len();
        protocol.take_actions();
    }
    assert_eq!(accepted, 2 * MAX_CONNECTIONS);
    // Joined and lost, some refusals, and how many more there were.
    assert!(events < 2 * 2 * MAX_CONNECTIONS as usize + 2 * 25, "{events} events");
    let later = start + 121 * SECOND;
    let id = protocol.on_connected(1, later);
    assert!(id.is_some() && protocol.connection(1) == id);
}
