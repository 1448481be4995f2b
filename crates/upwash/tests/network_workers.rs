//! Asynchronous workers on a network, against other workers that follow a script.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use upwash::Model;
use upwash::WorkerId;
use upwash::algorithm::WorkerStats;
use upwash::config::Config;
use upwash::engine::{CpuEngine, Engine, NativeModel};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, Status, run_with};
use upwash::transport::{
    Capabilities, Collectives, Membership, Message, MessageExchange, Placement, RoundStart, TransportError,
};

const REQUEST: u32 = 0;
const REPLY: u32 = 1;
const DONE: u32 = 2;

/// A connected network of other workers. What they send follows a script.
struct Scripted {
    placement: Placement,
    /// `None` is a pause of more than half the message timeout.
    script: VecDeque<Option<Message>>,
    /// The receiver, the kind and the step of each message that was sent, and the number of messages received before.
    sent: Vec<(WorkerId, u32, u32, usize)>,
    received: usize,
    refused: Vec<(WorkerId, String)>,
    /// Answers each request at once with a model that has this scalar. `None`: nobody can be reached.
    replies: Option<Replies>,
}

struct Replies {
    model: Message,
    scalar: Option<f64>,
}

impl Scripted {
    fn new(own: usize, workers: usize, script: Vec<Option<Message>>) -> Self {
        let placement = Placement::new(workers, workers, own);
        Self { placement, script: script.into(), sent: vec![], received: 0, refused: vec![], replies: None }
    }
}

impl Membership for Scripted {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survives_loss: true, authenticated: true, progresses: true }
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn may_begin(&mut self, _: u64, _: bool) -> Result<RoundStart, TransportError> {
        Ok(RoundStart::Go)
    }

    fn is_connected(&self, _: WorkerId) -> bool {
        true
    }

    fn refuse(&mut self, worker: WorkerId, why: String) {
        self.refused.push((worker, why));
    }
}

impl MessageExchange for Scripted {
    fn send(&mut self, to: WorkerId, message: Message) -> Result<bool, TransportError> {
        self.sent.push((to, message.exchange & 3, message.exchange >> 2, self.received));
        let Some(Replies { model, scalar }) = self.replies.as_ref().filter(|_| message.exchange & 3 == REQUEST) else {
            return Ok(true);
        };
        let Some(scalar) = *scalar else { return Ok(false) };
        let exchange = message.exchange | REPLY;
        self.script.push_back(Some(Message {
            exchange,
            stats: WorkerStats { scalar, ..model.stats },
            ..model.clone()
        }));
        Ok(true)
    }

    fn receive(&mut self, wait: Duration) -> Result<Vec<Message>, TransportError> {
        let next = self.script.pop_front();
        self.received += usize::from(next.is_some());
        match &next {
            None => std::thread::sleep(wait),
            Some(None) => std::thread::sleep(Duration::from_millis(300)),
            Some(Some(_)) => {}
        }
        Ok(next.into_iter().flatten().collect())
    }
}

impl Collectives for Scripted {}

fn prepare(text: &str) -> Experiment {
    let network = "[network]\nheartbeat_seconds = 0.05\nfailure_timeout_seconds = 0.2\nmessage_timeout_seconds = 0.5\n";
    let config = Config::parse(&format!("{text}{network}"), &[]).unwrap();
    Experiment::prepare(config, &DataPaths::default()).unwrap()
}

/// Runs one worker. Returns the status.
fn run_worker(experiment: &Experiment, transport: &mut Scripted) -> Status {
    run_to_model(experiment, transport).0
}

/// Runs one worker. Returns the status, and its model at the end.
fn run_to_model(experiment: &Experiment, transport: &mut Scripted) -> (Status, Vec<f32>) {
    let network = Arc::new(NativeModel::new(experiment.network.clone()));
    let own: Vec<WorkerId> = transport.placement.own().collect();
    let mut engine = CpuEngine::new(network, &experiment.engine_spec().only(&own));
    let start = Progress::start(experiment.workers());
    let mut watch = |_: &Event| ControlFlow::Continue;
    let status = run_with(experiment, &mut engine, transport, start, &mut watch).unwrap().summary.status;
    let state = engine.state().unwrap();
    (status, state.into_iter().find(|entry| entry.0 == "models").unwrap().1)
}

const PAIR: &str = "[graph]\ntopology = \"path:2\"\n[algorithm]\nname = \"ad-psgd\"\n[training]\nepochs = 1\n";

/// A partner that is connected and never replies is waited for once, and not in every exchange.
#[test]
fn a_silent_partner_is_asked_once() {
    let experiment = prepare(PAIR);
    assert!(experiment.rounds() > 10);
    let mut transport = Scripted::new(0, 2, vec![]);
    assert_eq!(run_worker(&experiment, &mut transport), Status::Finished);
    let requests = transport.sent.iter().filter(|sent| sent.1 == REQUEST).count();
    assert_eq!(requests, 1);
}

/// A message of worker `from` about `step`, with the sequence number `round`.
fn message(experiment: &Experiment, from: usize, kind: u32, step: u32, round: u64) -> Message {
    let width = NativeModel::new(experiment.network.clone()).layout().parameter_count();
    Message {
        from: WorkerId(from),
        round,
        exchange: step << 2 | kind,
        stats: WorkerStats { loss: None, degree: 1, scalar: 1.0 },
        whole: true,
        fresh: false,
        restart: None,
        values: vec![0.0; if kind == DONE { 0 } else { width }].into(),
    }
}

/// F14. Scalars that nobody can have, of finite models.
const IMPLAUSIBLE: [f64; 3] = [f64::NAN, f64::INFINITY, 1e-300];

#[test]
fn a_request_with_an_implausible_scalar_is_refused() {
    let experiment = prepare(PAIR);
    for scalar in IMPLAUSIBLE {
        let mut request = message(&experiment, 1, REQUEST, 0, 1);
        request.stats.scalar = scalar;
        let mut transport = Scripted::new(0, 2, vec![Some(request)]);
        assert_eq!(run_worker(&experiment, &mut transport), Status::Finished);
        assert_eq!(transport.refused, [(WorkerId(1), "invalid model in a request".to_string())], "{scalar}");
        assert!(transport.sent.iter().all(|sent| sent.1 != REPLY), "{scalar}: it replied");
    }
}

#[test]
fn a_reply_with_an_implausible_scalar_is_refused() {
    let experiment = prepare(PAIR);
    let run = |scalar: Option<f64>| {
        let mut transport = Scripted::new(0, 2, vec![]);
        transport.replies = Some(Replies { model: message(&experiment, 1, REPLY, 0, 1), scalar });
        let (status, model) = run_to_model(&experiment, &mut transport);
        assert_eq!(status, Status::Finished);
        (model, transport.refused)
    };
    let (alone, none) = run(None);
    assert!(none.is_empty());
    let (mixed, none) = run(Some(1.0));
    assert!(none.is_empty() && mixed != alone, "replies are not mixed");
    for scalar in IMPLAUSIBLE {
        let (model, refused) = run(Some(scalar));
        assert!(model == alone, "{scalar}: the reply was mixed");
        assert_eq!(refused.first(), Some(&(WorkerId(1), "invalid model in a reply".to_string())), "{scalar}");
    }
}

const SERVER: &str =
    "[graph]\ntopology = \"star:3\"\n[algorithm]\nname = \"downpour\"\nstaleness = 4\n[training]\nepochs = 2\n";

/// Runs a server. The script has senders, kinds and steps; then both workers finish.
fn run_server(experiment: &Experiment, mut script: Vec<Option<(usize, u32, u32)>>) -> Scripted {
    let last = experiment.rounds() as u32;
    script.extend([Some((1, DONE, last)), Some((2, DONE, last))]);
    let numbered = script.into_iter().zip(1..);
    let sent =
        numbered.map(|(entry, round)| entry.map(|(from, kind, step)| message(experiment, from, kind, step, round)));
    let mut transport = Scripted::new(0, 3, sent.collect());
    assert_eq!(run_worker(experiment, &mut transport), Status::Finished);
    transport
}

/// A worker that returns at step 0 does not hold up the worker that has gone on.
#[test]
fn a_returning_worker_does_not_hold_back_replies() {
    let experiment = prepare(SERVER);
    let (returns, ends) = (12, 22);
    assert!(experiment.rounds() > ends.into());
    // Both workers go on in step. Then worker 2 starts again, and worker 1 goes on.
    let mut script: Vec<_> = (0..returns).flat_map(|step| [(1, REQUEST, step), (2, REQUEST, step)]).collect();
    script.push((2, REQUEST, 0));
    script.extend((returns..ends).map(|step| (1, REQUEST, step)));
    let requests = script.len();
    let transport = run_server(&experiment, script.into_iter().map(Some).collect());
    assert!(transport.refused.is_empty(), "{:?}", transport.refused);
    let replied = |step: u32| {
        let mut sent = transport.sent.iter();
        sent.any(|&(to, kind, found, before)| (to, kind, found) == (WorkerId(1), REPLY, step) && before <= requests)
    };
    let missing: Vec<u32> = (0..ends).filter(|step| !replied(*step)).collect();
    assert!(missing.is_empty(), "no reply at {missing:?}");
}

/// A worker whose reply is held back for long has given up on it, and may ask again; but not at once.
#[test]
fn a_worker_that_was_held_back_may_ask_again() {
    let experiment = prepare(SERVER);
    let ahead: Vec<_> = [(2, REQUEST, 0)].into_iter().chain((0..5).map(|step| (1, REQUEST, step))).map(Some).collect();
    let again = Some((1, REQUEST, 5));
    let patient = run_server(&experiment, ahead.iter().copied().chain([None, again]).collect());
    assert!(patient.refused.is_empty(), "{:?}", patient.refused);
    let hasty = run_server(&experiment, ahead.into_iter().chain([again]).collect());
    assert_eq!(hasty.refused, [(WorkerId(1), "a second request before the reply to the first".to_string())]);
}
