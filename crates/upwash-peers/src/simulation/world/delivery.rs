//! How connections of the simulated network are opened and closed, and how frames arrive.

use super::{Connection, Happening, LIMITS, MS, World};
use crate::frame::{FRAME_HEADER, Frame, FrameHeader, Kind};
use crate::protocol::{Protocol, Time, Violation};
use std::collections::VecDeque;
use std::time::Duration;

impl World {
    pub(in crate::simulation) fn dial(&mut self, from: usize, process: u64, to: usize) {
        let is_current = self.nodes[from].is_running && self.nodes[from].process == process;
        let protocol = self.nodes[from].protocol.as_ref();
        if !is_current || protocol.is_none_or(|protocol| protocol.connection(to).is_some()) {
            return;
        }
        if !self.nodes[to].is_running || self.cut[from][to] || self.cut[to][from] {
            return self.schedule(200 * MS, Happening::Dial { from, process, to });
        }
        let index = self.connections.len();
        let processes = [process, self.nodes[to].process];
        self.connections.push(Connection {
            workers: [from, to],
            processes,
            ids: [None; 2],
            on_the_way: [VecDeque::new(), VecDeque::new()],
            last_arrival: [Time::ZERO; 2],
        });
        for (end, worker, other) in [(1, to, from), (0, from, to)] {
            // The connection is known before what it sends is carried out.
            let node = &mut self.nodes[worker];
            let Some(mut protocol) = node.protocol.take() else { continue };
            let id = protocol.on_connected(other, self.now);
            node.protocol = Some(protocol);
            self.connections[index].ids[end] = id;
            match id {
                Some(id) => drop(node.connections.insert(id, index)),
                None => self.schedule(1000 * MS, Happening::Hangup { connection: index, end: 1 - end }),
            }
        }
        for (worker, process) in [(to, processes[1]), (from, processes[0])] {
            self.call(worker, process, |_, _| ());
        }
    }

    pub(in crate::simulation) fn hangup_arrives(&mut self, connection: usize, end: usize) {
        let open = &self.connections[connection];
        let [worker, other] = [open.workers[end], open.workers[1 - end]];
        let Some(id) = open.ids[end] else {
            return self.redial(worker, connection);
        };
        if self.cut[other][worker] {
            // Nobody learns of it until the cut ends, or by a timeout.
            return self.schedule(50 * MS, Happening::Hangup { connection, end });
        }
        let process = open.processes[end];
        self.connections[connection].ids[end] = None;
        self.nodes[worker].connections.remove(&id);
        self.call(worker, process, |protocol, _| {
            protocol.on_disconnected(other, id, "it closed the connection".into());
        });
        self.redial(worker, connection);
    }

    pub(in crate::simulation) fn arrival(&mut self, connection: usize, from: usize) {
        let open = &self.connections[connection];
        let [sender, receiver] = [open.workers[from], open.workers[1 - from]];
        let Some(&(arrival, _)) = open.on_the_way[from].front() else { return };
        let later = |world: &mut Self, after| world.schedule(after, Happening::Arrival { connection, from });
        if arrival > self.now {
            return later(self, arrival - self.now);
        }
        if self.cut[sender][receiver] {
            return later(self, 20 * MS);
        }
        let open = &mut self.connections[connection];
        let Some(id) = open.ids[1 - from] else {
            open.on_the_way[from].clear();
            return;
        };
        let process = open.processes[1 - from];
        if !self.call(receiver, process, |protocol, _| protocol.has_space(sender, id)) {
            return later(self, 5 * MS);
        }
        let Some((_, bytes)) = self.connections[connection].on_the_way[from].pop_front() else { return };
        let mut kind = Kind::Heartbeat;
        // A liar does not mind the answers to what it has sent.
        let is_strict = self.nodes[receiver].lie.is_none();
        self.call(receiver, process, |protocol, now| {
            if let Err(Violation(why)) = receive(protocol, sender, id, &bytes, now, &mut kind)
                && is_strict
            {
                protocol.record_refusal(format!("worker {sender}: {why}"), now);
                protocol.close(sender, id, why);
            }
        });
        let (id, process) = (self.connections[connection].ids[from], self.connections[connection].processes[from]);
        if let Some(id) = id {
            self.call(sender, process, |protocol, _| protocol.on_written(receiver, id, kind));
        }
        if !self.connections[connection].on_the_way[from].is_empty() {
            later(self, Duration::ZERO);
        }
    }

    /// Both ends of a connection learn how much of a model has passed.
    pub(in crate::simulation) fn part(&mut self, connection: usize, from: usize, done: usize) {
        let Connection { workers, processes, ids, .. } = &self.connections[connection];
        let (workers, processes, ids) = (*workers, *processes, *ids);
        let (sender, receiver) = (workers[from], workers[1 - from]);
        if self.cut[sender][receiver] {
            return;
        }
        if let Some(id) = ids[1 - from] {
            self.call(receiver, processes[1 - from], |protocol, now| protocol.on_model_read(sender, id, done, 16, now));
        }
        if let Some(id) = ids[from] {
            self.call(sender, processes[from], |protocol, now| protocol.on_model_written(receiver, id, done, 16, now));
        }
    }
}

/// What a connection does with the bytes of a frame.
fn receive(
    protocol: &mut Protocol,
    sender: usize,
    id: u64,
    bytes: &[u8],
    now: Time,
    kind: &mut Kind,
) -> Result<(), Violation> {
    let broken = |error: crate::FrameError| Violation(error.to_string());
    let Some((header, content)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return Err(Violation("truncated frame".into()));
    };
    let header = FrameHeader::parse(header, &LIMITS).map_err(broken)?;
    *kind = header.kind;
    protocol.admits(sender, id, header.kind, now)?;
    header.check(content).map_err(broken)?;
    let frame = Frame::parse(header.kind, content).map_err(broken)?;
    protocol.on_frame(sender, id, frame, now)
}
