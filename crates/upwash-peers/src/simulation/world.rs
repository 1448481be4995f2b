//! The simulated network and clock: what happens in which order, and which bytes travel between which peers.

mod delivery;

use super::liars::encode;
use super::schedule::{Fault, Lie};
use super::trace::Trace;
use crate::frame::{Kind, Limits};
use crate::protocol::{Action, Outbound, Protocol, ProtocolConfig, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use upwash::run::Snapshot;
use upwash_topology::random::Stream;

pub(super) const LIMITS: Limits = Limits { message: 64, model: 4096 };
pub(super) const MS: Duration = Duration::from_millis(1);

/// Something that happens at a time.
pub(super) enum Happening {
    /// A process's clock ticks.
    Tick {
        worker: usize,
        process: u64,
    },
    /// A process tries to connect to another worker.
    Dial {
        from: usize,
        process: u64,
        to: usize,
    },
    /// The first frame on its way in this direction arrives.
    Arrival {
        connection: usize,
        from: usize,
    },
    /// One end of a connection learns that the other has closed it.
    Hangup {
        connection: usize,
        end: usize,
    },
    /// A sixteenth of a model has arrived.
    Part {
        connection: usize,
        from: usize,
        done: usize,
    },
    /// A process continues, if it still waits for this.
    Wake {
        worker: usize,
        process: u64,
        wake: u64,
    },
    Fault(Fault),
    Start {
        worker: usize,
    },
}

/// A connection between two processes. Frames arrive in order.
struct Connection {
    workers: [usize; 2],
    processes: [u64; 2],
    /// The id of the connection at each end, while that end holds it.
    ids: [Option<u64>; 2],
    /// The frames on their way from each end.
    on_the_way: [VecDeque<(Time, Vec<u8>)>; 2],
    last_arrival: [Time; 2],
}

/// The process of a worker.
pub(super) struct Node {
    pub(super) config: ProtocolConfig,
    pub(super) protocol: Option<Protocol>,
    /// Counts the processes of this worker.
    pub(super) process: u64,
    pub(super) is_running: bool,
    /// What the process waits for: a version other than this one, or a wake-up.
    pub(super) waits: Option<(Option<u64>, u64)>,
    /// The duration of its gradients, and until when it is stuck.
    pub(super) gradient: Duration,
    pub(super) stuck_until: Time,
    pub(super) lie: Option<Lie>,
    pub(super) disk: Option<Snapshot>,
    /// The connections by their ids at this process.
    connections: BTreeMap<u64, usize>,
}

pub(super) struct World {
    pub(super) now: Time,
    queue: BTreeMap<(Time, u64), Happening>,
    serial: u64,
    pub(super) random: Stream,
    pub(super) nodes: Vec<Node>,
    connections: Vec<Connection>,
    /// Whether nothing gets from one worker to another.
    pub(super) cut: Vec<Vec<bool>>,
    /// A worker whose models do not arrive.
    pub(super) withheld_models: Option<usize>,
    /// How long each sixteenth of a model takes, if the network is slow.
    pub(super) slow_models: Option<Duration>,
    /// When a fault last began or ended, or a process started.
    pub(super) last_fault: Time,
    /// The longest delay of a frame.
    pub(super) delay: Duration,
    pub(super) trace: Trace,
    /// Processes that may be able to continue.
    pub(super) touched: Vec<usize>,
}

impl World {
    pub(super) fn new(configs: Vec<ProtocolConfig>, delay: Duration, random: Stream) -> Self {
        let workers = configs.len();
        let node = |config: ProtocolConfig| Node {
            config,
            protocol: None,
            process: 0,
            is_running: false,
            waits: None,
            gradient: 5 * MS,
            stuck_until: Time::ZERO,
            lie: None,
            disk: None,
            connections: BTreeMap::new(),
        };
        Self {
            now: Duration::from_secs(1_000_000),
            queue: BTreeMap::new(),
            serial: 0,
            random,
            nodes: configs.into_iter().map(node).collect(),
            connections: vec![],
            cut: vec![vec![false; workers]; workers],
            withheld_models: None,
            slow_models: None,
            last_fault: Time::ZERO,
            delay,
            trace: Trace::new(workers),
            touched: vec![],
        }
    }

    pub(super) fn schedule(&mut self, after: Duration, happening: Happening) {
        self.serial += 1;
        self.queue.insert((self.now + after, self.serial), happening);
    }

    /// Takes the next happening, and moves the clock.
    pub(super) fn next(&mut self) -> Option<Happening> {
        let ((time, _), happening) = self.queue.pop_first()?;
        self.now = time;
        Some(happening)
    }

    /// Checks that a process that gives up had a reason: nobody to join for a while.
    pub(super) fn check_isolation(&self, worker: usize) {
        let calm = self.now.saturating_sub(self.last_fault) > 3500 * MS;
        // A liar can keep its neighbors from joining others, and these theirs.
        let has_liar = self.nodes.iter().any(|node| node.lie.is_some());
        let reachable = |other: &usize| {
            let is_cut = self.cut[worker][*other] || self.cut[*other][worker];
            self.nodes[*other].is_running && !is_cut
        };
        if calm && !has_liar {
            let neighbors = self.nodes[worker].config.neighbors.iter().copied();
            let reachable: Vec<usize> = neighbors.filter(reachable).collect();
            self.trace.check(reachable.is_empty(), worker, || format!("gave up, but could reach {reachable:?}"));
        }
    }

    /// Whether a process that waits can continue.
    pub(super) fn is_ready(&self, worker: usize) -> bool {
        let node = &self.nodes[worker];
        let Some((Some(version), _)) = node.waits else {
            return false;
        };
        node.protocol.as_ref().is_some_and(|protocol| protocol.version() != version)
    }

    /// Whether a process will start.
    pub(super) fn expects_processes(&self) -> bool {
        let starts = |happening: &Happening| {
            matches!(happening, Happening::Start { .. } | Happening::Fault(Fault::Restart { .. }))
        };
        self.queue.values().any(starts)
    }

    fn random_delay(&mut self) -> Duration {
        self.delay.mul_f64(0.1 + 0.9 * self.random.uniform())
    }

    /// Starts a process with a new protocol.
    pub(super) fn boot(&mut self, worker: usize) -> u64 {
        let node = &mut self.nodes[worker];
        node.process += 1;
        node.protocol = Some(Protocol::new(node.config.clone()));
        (node.is_running, node.waits, node.stuck_until) = (true, None, Time::ZERO);
        let (process, neighbors) = (node.process, node.config.neighbors.clone());
        self.schedule(Duration::ZERO, Happening::Tick { worker, process });
        for to in neighbors.into_iter().filter(|&to| to > worker) {
            self.schedule(MS, Happening::Dial { from: worker, process, to });
        }
        process
    }

    /// Ends a process. What it has sent still arrives.
    pub(super) fn halt(&mut self, worker: usize) {
        let node = &mut self.nodes[worker];
        (node.is_running, node.waits, node.protocol) = (false, None, None);
        node.process += 1;
        for connection in std::mem::take(&mut node.connections).into_values() {
            self.hang_up(connection, worker);
        }
    }

    /// Closes one end of a connection.
    fn hang_up(&mut self, connection: usize, worker: usize) {
        let open = &mut self.connections[connection];
        let end = usize::from(open.workers[1] == worker);
        open.ids[end] = None;
        let delay = self.random_delay();
        let after = self.connections[connection].last_arrival[end].saturating_sub(self.now).max(delay);
        self.schedule(after, Happening::Hangup { connection, end: 1 - end });
    }

    /// Calls the protocol of a process, and carries out its actions. A process that was killed calls nobody's.
    pub(super) fn call<T>(&mut self, worker: usize, process: u64, call: impl FnOnce(&mut Protocol, Time) -> T) -> T {
        let (now, node) = (self.now, &mut self.nodes[worker]);
        let is_current = node.process == process;
        let protocol = node.protocol.take().filter(|_| is_current);
        let mut protocol = protocol.unwrap_or_else(|| Protocol::new(node.config.clone()));
        let result = call(&mut protocol, now);
        if is_current && self.nodes[worker].is_running {
            let actions = protocol.take_actions();
            assert!(protocol.is_within_bounds(), "worker {worker} holds more than the documented bounds");
            self.nodes[worker].protocol = Some(protocol);
            self.touched.push(worker);
            for action in actions {
                self.carry_out(worker, action);
            }
        }
        result
    }

    fn carry_out(&mut self, worker: usize, action: Action) {
        match action {
            Action::Close { id } => {
                if let Some(connection) = self.nodes[worker].connections.remove(&id) {
                    self.hang_up(connection, worker);
                    self.redial(worker, connection);
                }
            }
            Action::Send { id, frame } => {
                let Some(&connection) = self.nodes[worker].connections.get(&id) else {
                    return;
                };
                if self.withheld_models == Some(worker) && matches!(frame, Outbound::Model(_)) {
                    return self.pretend_to_send(worker, connection, id);
                }
                let bytes = encode(&frame);
                let frames = match self.nodes[worker].lie {
                    Some(lie) => lie.tell(bytes, self.nodes.len()),
                    None => vec![bytes],
                };
                let part = self.slow_models.filter(|_| matches!(frame, Outbound::Model(_)));
                for bytes in frames {
                    self.transmit(connection, worker, bytes, part.unwrap_or_default());
                }
            }
        }
    }

    /// A model is not sent, and its sender goes on as if it had been.
    fn pretend_to_send(&mut self, worker: usize, connection: usize, id: u64) {
        let Connection { workers, processes, .. } = &self.connections[connection];
        let end = usize::from(workers[1] == worker);
        let (process, receiver) = (processes[end], workers[1 - end]);
        self.call(worker, process, |protocol, _| protocol.on_written(receiver, id, Kind::Model));
    }

    /// Of two workers, the one with the lower index connects again.
    fn redial(&mut self, worker: usize, connection: usize) {
        let [from, to] = self.connections[connection].workers;
        if worker == from {
            let process = self.nodes[from].process;
            self.schedule(50 * MS, Happening::Dial { from, process, to });
        }
    }

    /// Sends a frame, each sixteenth of which takes the duration `part` in addition.
    fn transmit(&mut self, connection: usize, worker: usize, bytes: Vec<u8>, part: Duration) {
        let delay = self.random_delay() + 16 * part;
        let from = usize::from(self.connections[connection].workers[1] == worker);
        for done in (1..=16).filter(|_| !part.is_zero()) {
            self.schedule(part * done as u32, Happening::Part { connection, from, done });
        }
        let open = &mut self.connections[connection];
        let arrival = (self.now + delay).max(open.last_arrival[from]);
        open.last_arrival[from] = arrival;
        open.on_the_way[from].push_back((arrival, bytes));
        let after = arrival - self.now;
        self.schedule(after, Happening::Arrival { connection, from });
    }
}
