//! Tables of an exchange, in the form that the mixing kernels read.

use super::buffers::Uploads;
use super::{EXCHANGE, WARPS};
use crate::shim::{Argument, Kernels, TorchError};
use std::collections::HashMap;
use tch::Tensor;
use upwash::RowIndex;
use upwash::algorithm::{Assignment, Differences, RowPlan, Vector};
use upwash::engine::MixOptions;

/// The tables of the kernel `exchange` in kernels.cu: messages, and assignments that combine them.
pub(super) struct ExchangeTables<'a> {
    plans: HashMap<RowIndex, &'a RowPlan>,
    remote_map: &'a RemoteRowMap,
    /// The state vector whose rows are the messages of other processes.
    remote_vector: Vector,
    /// The index of every message that has a receiver, by sender and message index of the sender.
    message_indices: HashMap<(RowIndex, usize), i32>,
    /// Row, first term and end of terms of each message.
    messages: Vec<i32>,
    /// Eight values for each assignment, as kernels.cu lists them.
    assignments: Vec<i32>,
    /// The index of each plan's first assignment, and the total at the end.
    starts: Vec<i32>,
    own_terms: Vec<(Vector, f64)>,
    received: Vec<(i32, f64)>,
}

/// Maps remote rows to rows of the last vector, which holds the messages of other processes.
pub(super) struct RemoteRowMap {
    /// The index of the first remote row.
    pub(super) workers: usize,
    /// The row of each remote worker's first message.
    pub(super) first: Vec<usize>,
}

impl<'a> ExchangeTables<'a> {
    /// `vectors` are models, steps, state vectors, and the messages of other processes.
    pub(super) fn new(
        vectors: &[Argument],
        plans: &'a [RowPlan],
        remote_map: &'a RemoteRowMap,
        options: MixOptions,
    ) -> Self {
        let mut tables = Self {
            plans: plans.iter().map(|plan| (plan.row, plan)).collect(),
            remote_map,
            remote_vector: Vector::State(vectors.len() - 3),
            message_indices: HashMap::new(),
            messages: Vec::new(),
            assignments: Vec::new(),
            starts: vec![0],
            own_terms: Vec::new(),
            received: Vec::new(),
        };
        for plan in plans {
            for assignment in &plan.plan.assignments {
                tables.add_assignment(plan.row, assignment, differences_of(plan.row, assignment, plans, options));
            }
            tables.starts.push((tables.assignments.len() / 8) as i32);
        }
        tables
    }

    fn add_assignment(
        &mut self,
        row: RowIndex,
        assignment: &Assignment<RowIndex>,
        differences: Option<Differences<RowIndex>>,
    ) {
        let first_received = self.received.len();
        let reference = reference_of(&differences, |sender| self.message_index(sender, assignment.message_index));
        for (sender, weight) in differences.into_iter().flat_map(|found| found.others) {
            let message = self.message_index(sender, assignment.message_index);
            self.received.push((message, weight));
        }
        let own = self.add_own_terms(assignment.own.iter().copied());
        let received = [first_received as i32, self.received.len() as i32];
        self.assignments.extend([vector_index(assignment.target), row.0 as i32]);
        self.assignments.extend(own.into_iter().chain(received).chain(reference));
    }

    /// The index of a sender's message. Adds the message to the tables on first use.
    fn message_index(&mut self, sender: RowIndex, outgoing_index: usize) -> i32 {
        if let Some(&index) = self.message_indices.get(&(sender, outgoing_index)) {
            return index;
        }
        let (row, content) = match sender.0.checked_sub(self.remote_map.workers) {
            Some(remote) => (self.remote_map.first[remote] + outgoing_index, vec![(self.remote_vector, 1.0)]),
            None => {
                let message = &self.plans[&sender].messages[outgoing_index];
                let copy = message.public_copy.map(|(copy, _)| vec![(Vector::State(copy), 1.0)]);
                (sender.0, copy.unwrap_or_else(|| message.content.clone()))
            }
        };
        let index = self.message_indices.len() as i32;
        let terms = self.add_own_terms(content);
        self.messages.push(row as i32);
        self.messages.extend(terms);
        self.message_indices.insert((sender, outgoing_index), index);
        index
    }

    /// Adds terms. Returns the index of the first one and the end.
    fn add_own_terms(&mut self, terms: impl IntoIterator<Item = (Vector, f64)>) -> [i32; 2] {
        let first = self.own_terms.len();
        self.own_terms.extend(terms);
        [first as i32, self.own_terms.len() as i32]
    }

    /// Carries out the exchange. `vectors` are those passed to [`new`](Self::new), and their rows have `width`
    /// elements.
    pub(super) fn launch(
        self,
        kernels: &Kernels,
        uploads: &mut Uploads,
        vectors: &[Argument],
        width: usize,
    ) -> Result<(), TorchError> {
        if width == 0 {
            return Ok(());
        }
        let mut arrays = Arrays::default();
        arrays.add(vectors.iter().flat_map(halves_of_pointer));
        arrays.add(self.messages);
        arrays.add(self.assignments);
        arrays.add(self.starts);
        arrays.add(self.own_terms.iter().flat_map(|&(vector, weight)| [vector_index(vector), bits(weight)]));
        arrays.add(self.received.iter().flat_map(|&(message, weight)| [message, bits(weight)]));
        let (_table, mut arguments) = arrays.upload(uploads)?;
        let (messages, width4) = (self.message_indices.len(), width / 4);
        arguments.push(Argument::Int(messages as i32));
        arguments.push(Argument::Int(self.plans.len() as i32));
        arguments.push(Argument::Long(width4 as i64));
        let grid = [width4.div_ceil(32) as u32, 1, 1];
        let shared = (messages.max(1) * 128 * size_of::<f32>()) as u32;
        // SAFETY: the arguments are those of `exchange` in kernels.cu, in its order. The caller passes vectors that all
        // have a row of this width for each row that the plans name, and `shared` has room for every message. `_table`
        // keeps the tables allocated until the launch is queued; only later work on this stream reuses their memory.
        unsafe { kernels.launch(EXCHANGE, grid, 32 * WARPS, shared, &arguments) }
    }
}

/// The position of a vector in the kernel's list of vectors.
fn vector_index(vector: Vector) -> i32 {
    match vector {
        Vector::Model => 0,
        Vector::Step => 1,
        Vector::State(index) => 2 + index as i32,
    }
}

/// The low and the high half of a pointer.
fn halves_of_pointer(argument: &Argument) -> [i32; 2] {
    match argument {
        Argument::Pointer(pointer) => {
            let address = *pointer as usize as u64;
            [address as u32 as i32, (address >> 32) as u32 as i32]
        }
        _ => [0, 0],
    }
}

/// The messages of a worker's assignment, including those of a mean over all workers.
pub(super) fn differences_of(
    row: RowIndex,
    assignment: &Assignment<RowIndex>,
    plans: &[RowPlan],
    options: MixOptions,
) -> Option<Differences<RowIndex>> {
    if assignment.mean == 0.0 {
        return assignment.differences(row);
    }
    let counted = plans.iter().map(|plan| plan.row);
    let counted: Vec<RowIndex> = counted.filter(|&row| Some(row) != options.server).collect();
    let weight = assignment.mean / counted.len() as f64;
    let mut all = assignment.clone();
    counted.iter().for_each(|&sender| all.add(sender, weight));
    match assignment.messages.is_empty() {
        // A mean alone must have the same bits for every worker, so that all of them use the same reference.
        true => Some(Differences::from(*counted.first()?, &all.messages)),
        false => all.differences(row),
    }
}

/// The index of the reference message and the bits of its weight, as the kernels read them; index -1 if there is none.
pub(super) fn reference_of(
    differences: &Option<Differences<RowIndex>>,
    message_index: impl FnOnce(RowIndex) -> i32,
) -> [i32; 2] {
    match differences {
        Some(differences) => [message_index(differences.reference), bits(differences.weight)],
        None => [-1, 0],
    }
}

/// Arrays of 32-bit values packed into one buffer, and the offset of each.
#[derive(Default)]
pub(super) struct Arrays {
    values: Vec<i32>,
    starts: Vec<usize>,
}

impl Arrays {
    pub(super) fn add(&mut self, array: impl IntoIterator<Item = i32>) {
        // Kernels read pairs with one load, so arrays begin at even offsets.
        if !self.values.len().is_multiple_of(2) {
            self.values.push(0);
        }
        self.starts.push(self.values.len());
        self.values.extend(array);
    }

    /// Uploads all arrays. Returns the buffer on the GPU and a pointer to each array in it.
    pub(super) fn upload(mut self, uploads: &mut Uploads) -> Result<(Tensor, Vec<Argument>), TorchError> {
        if !self.values.len().is_multiple_of(2) {
            self.values.push(0);
        }
        let pair = |pair: &[i32]| {
            let [low, high] = [pair[0] as u32, pair[1] as u32].map(u64::from);
            (low | high << 32) as i64
        };
        let pairs: Vec<i64> = self.values.chunks_exact(2).map(pair).collect();
        let buffer = uploads.upload(&pairs)?;
        let pointer = |start: &usize| {
            let from = (*start / 2).min(pairs.len() - 1) as i64;
            Argument::of(&buffer.narrow(0, from, 1))
        };
        let pointers = self.starts.iter().map(pointer).collect();
        Ok((buffer, pointers))
    }
}

/// A weight as the bits of an f32.
pub(super) fn bits(weight: f64) -> i32 {
    (weight as f32).to_bits() as i32
}
