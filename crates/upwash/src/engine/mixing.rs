//! Exchanges on the CPU: the assignments of all workers in one pass over memory.
//!
//! The pass processes blocks of columns that fit into the cache: it forms the messages of a block, computes the sums of
//! every row from them, and writes the block back. Each value of X and U is read from memory once and each value of X
//! is written once, which is the minimum. Every column is summed in the order of the plan, so the result does not
//! depend on the number of threads. Only compression needs a separate pass, because it looks at a whole vector.

mod program;

use crate::algorithm::{Assignment, Outgoing, Plan, RowPlan, Vector};
use crate::buffer::Buffer;
use crate::ids::RowIndex;
use program::Program;
use rayon::prelude::*;

/// The size in bytes of a block's models, updates and messages together: about half of a core's L2 cache.
const BLOCK_BYTES: usize = 192 * 1024;

/// The vectors of a worker.
#[derive(Debug)]
pub struct WorkerVectors<'a> {
    /// The model x.
    pub model: &'a mut [f32],
    /// The step u. May be empty if no message or plan names it.
    pub step: &'a [f32],
    /// The algorithm's state vectors.
    pub state_vectors: Vec<&'a mut [f32]>,
}

/// The options of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct MixOptions {
    /// The row of the server, which does not count in a mean of all workers.
    pub server: Option<RowIndex>,
    /// The round. Random compression depends on it and on the worker's ID in its experiment.
    pub round: u64,
    /// The worker ID of a row minus its index. Negative if several experiments share an engine.
    pub worker_offset: isize,
    /// Whether to use only the calling thread.
    pub single_threaded: bool,
    /// Whether this is the last exchange of the round, so that no later one can use the same steps.
    pub is_last: bool,
}

/// The only exchange of round 0.
impl Default for MixOptions {
    fn default() -> Self {
        Self { server: None, round: 0, worker_offset: 0, single_threaded: false, is_last: true }
    }
}

/// Carries out an exchange. There is one plan for each of `rows`, then one for each of `remote_rows`. All rows and
/// messages have the same length.
///
/// # Panics
/// If the number of plans differs from the number of rows, or a plan names a sender that has no plan.
///
/// ```
/// use upwash::algorithm::{Assignment, Outgoing, RowPlan, Vector};
/// use upwash::engine::{WorkerVectors, exchange};
/// use upwash::RowIndex;
/// let (mut a, mut b, u) = ([2.0], [4.0], [1.0]);
/// let half = Assignment::mixed(Vector::Model, vec![(RowIndex(0), 0.5), (RowIndex(1), 0.5)]);
/// let part = |row| RowPlan { row: RowIndex(row), messages: vec![Outgoing::stepped()], plan: half.clone().into() };
/// let rows = vec![
///     WorkerVectors { model: &mut a, step: &u, state_vectors: vec![] },
///     WorkerVectors { model: &mut b, step: &u, state_vectors: vec![] },
/// ];
/// exchange(rows, &[], &[part(0), part(1)], Default::default());
/// assert_eq!((a, b), ([2.0], [2.0])); // the mean of 2 - 1 and 4 - 1
/// ```
pub fn exchange(mut rows: Vec<WorkerVectors<'_>>, remote_rows: &[RemoteRow], plans: &[RowPlan], options: MixOptions) {
    let all = rows.len() + remote_rows.len();
    assert_eq!(all, plans.len(), "there must be one plan for each row and remote row");
    let width = rows.first().map_or(0, |row| row.model.len());
    if width == 0 {
        return;
    }
    compress(&mut rows, plans, options);
    let program = Program::new(plans, remote_rows, options.server);
    let block = (BLOCK_BYTES / (3 * rows.len().max(program.messages.len()) * size_of::<f32>())).clamp(16, 16 * 1024);
    // A single thread is the calling one: no other needs to wake up.
    let single = options.single_threaded || rayon::current_num_threads() == 1;
    if single || width <= block {
        program.run(&mut rows, 0, block);
        return;
    }
    // Each task gets the same columns of every row.
    let tasks = (8 * rayon::current_num_threads()).min(width.div_ceil(block));
    let piece = width.div_ceil(tasks).next_multiple_of(16);
    let mut pieces: Vec<Vec<WorkerVectors<'_>>> = Vec::with_capacity(tasks);
    while rows[0].model.len() > piece {
        let rest = rows.iter_mut().map(|row| row.split_off(piece)).collect();
        pieces.push(std::mem::replace(&mut rows, rest));
    }
    pieces.push(rows);
    pieces.par_iter_mut().enumerate().for_each(|(index, rows)| program.run(rows, index * piece, block));
}

impl MixOptions {
    /// Identifies the random draw for a row.
    pub fn draw(&self, row: RowIndex) -> [u64; 2] {
        [row.0.wrapping_add_signed(self.worker_offset) as u64, self.round]
    }
}

/// The messages of a worker in another process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteRow {
    /// The messages as received.
    pub messages: Vec<Buffer>,
}

impl RemoteRow {
    /// The plan of this remote row at index `row`: it only provides messages, and none of its vectors change.
    pub fn row_plan(&self, row: RowIndex) -> RowPlan {
        RowPlan {
            row,
            // Their contents are not known here, and not needed.
            messages: vec![Outgoing::of([]); self.messages.len()],
            plan: Plan::default(),
        }
    }
}

/// Replaces rows of statistics by weighted sums of these rows and of remote rows, whose indices follow.
pub(super) fn mix_statistics(rows: Vec<&mut [f32]>, weights: &[Vec<(RowIndex, f64)>], remote_rows: Vec<Vec<f32>>) {
    let plan = |(row, messages): (usize, &Vec<(RowIndex, f64)>)| RowPlan {
        row: RowIndex(row),
        messages: vec![Outgoing::model()],
        plan: Assignment::mixed(Vector::Model, messages.clone()).into(),
    };
    let remote = |statistics: Vec<f32>| RemoteRow { messages: vec![statistics.into()] };
    let remote_rows: Vec<RemoteRow> = remote_rows.into_iter().map(remote).collect();
    let mut plans: Vec<RowPlan> = weights.iter().enumerate().map(plan).collect();
    let remote = (rows.len()..).zip(&remote_rows);
    plans.extend(remote.map(|(row, remote)| remote.row_plan(RowIndex(row))));
    let vectors = |model| WorkerVectors { model, step: &[], state_vectors: vec![] };
    let rows = rows.into_iter().map(vectors).collect();
    exchange(rows, &remote_rows, &plans, MixOptions::default());
}

impl<'a> WorkerVectors<'a> {
    /// A message of this row as it is sent: its content, or the compressed difference from the public copy.
    pub fn outgoing(&self, message: &Outgoing, draw: &[u64]) -> Vec<f32> {
        let mut content = vec![0.0; self.model.len()];
        self.write_outgoing(message, draw, &mut content);
        content
    }

    /// Writes a [message](Self::outgoing) to a slice of the same length.
    pub fn write_outgoing(&self, message: &Outgoing, draw: &[u64], content: &mut [f32]) {
        combine_own(content, &message.content, self, 0);
        if let Some((copy, compression)) = message.public_copy {
            let copy = self.state_vectors[copy].iter();
            content.iter_mut().zip(copy).for_each(|(d, c)| *d -= c);
            compression.apply(content, draw);
        }
    }

    /// A range of columns of one of the vectors.
    fn own(&self, vector: Vector, from: usize, length: usize) -> &[f32] {
        match vector {
            Vector::Model => &self.model[from..from + length],
            Vector::Step => &self.step[from..from + length],
            Vector::State(index) => &self.state_vectors[index][from..from + length],
        }
    }

    /// Splits the row at a column and returns the columns from there on.
    fn split_off(&mut self, column: usize) -> Self {
        let cut = |slice: &mut &'a mut [f32]| {
            let (head, tail) = std::mem::take(slice).split_at_mut(column);
            *slice = head;
            tail
        };
        let model = cut(&mut self.model);
        let state_vectors = self.state_vectors.iter_mut().map(cut).collect();
        let (head, step) = self.step.split_at(column.min(self.step.len()));
        self.step = head;
        Self { model, step, state_vectors }
    }
}

/// Updates the public copies: adds the compressed differences to them.
fn compress(rows: &mut [WorkerVectors<'_>], plans: &[RowPlan], options: MixOptions) {
    let update = |(row, plan): (&mut WorkerVectors<'_>, &RowPlan)| {
        for message in &plan.messages {
            let Some((copy, _)) = message.public_copy else {
                continue;
            };
            let difference = row.outgoing(message, &options.draw(plan.row));
            let copy = &mut *row.state_vectors[copy];
            copy.iter_mut().zip(difference).for_each(|(c, d)| *c += d);
        }
    };
    let compresses = |plan: &RowPlan| plan.messages.iter().any(|m| m.public_copy.is_some());
    if plans.iter().any(compresses) {
        rows.par_iter_mut().zip(plans).for_each(update);
    }
}

/// Sets `sum` to a combination of a row's own vectors, from column `from` on.
fn combine_own(sum: &mut [f32], content: &[(Vector, f64)], row: &WorkerVectors<'_>, from: usize) {
    let length = sum.len();
    let vector = |vector: Vector| row.own(vector, from, length);
    match content {
        [(only, 1.0)] => sum.copy_from_slice(vector(*only)),
        [(first, 1.0), (second, -1.0)] => {
            let both = vector(*first).iter().zip(vector(*second));
            sum.iter_mut().zip(both).for_each(|(sum, (a, b))| *sum = a - b);
        }
        _ => {
            sum.fill(0.0);
            for (own, weight) in content {
                add(sum, vector(*own), *weight as f32);
            }
        }
    }
}

fn add(sum: &mut [f32], vector: &[f32], weight: f32) {
    sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += weight * x);
}
