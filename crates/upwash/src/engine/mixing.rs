//! Exchanges on the CPU: everyone's assignments in one pass over memory.
//!
//! The vectors are walked in blocks of columns that fit into the cache: a block's messages are formed,
//! every row's sums are taken from them, and the block is written back. Each number of X and U is read
//! from memory once and each of X written once, which is the least that can be done. Every column is
//! summed in the order of the plan, so that the result does not depend on the number of threads.
//! Only compression needs a pass of its own: it looks at a whole vector.

mod program;

use crate::algorithm::{Assignment, Outgoing, Plan, RowPlan, Vector};
use crate::buffer::Buffer;
use crate::ids::RowIndex;
use program::Program;
use rayon::prelude::*;

/// Bytes of a block's models, updates and messages together: about half of a core's L2 cache.
const BLOCK_BYTES: usize = 192 * 1024;

/// A worker's vectors.
#[derive(Debug)]
pub struct WorkerVectors<'a> {
    /// x.
    pub model: &'a mut [f32],
    /// u; may be empty where no message or plan names it.
    pub step: &'a [f32],
    /// The algorithm's extra vectors.
    pub state_vectors: Vec<&'a mut [f32]>,
}

/// What an exchange depends on beside its parts.
#[derive(Clone, Copy, Debug)]
pub struct MixOptions {
    /// Who does not count in a mean of all.
    pub server: Option<RowIndex>,
    /// The round: what random compression depends on, beside the worker's number in its experiment ...
    pub round: u64,
    /// ... which is its number here and so much more (or less, where several experiments share an engine).
    pub worker_offset: isize,
    /// Keep to the calling thread.
    pub single_threaded: bool,
    /// No other exchange of the same round follows, which could name the same steps.
    pub is_last: bool,
}

/// The only exchange of round 0.
impl Default for MixOptions {
    fn default() -> Self {
        Self { server: None, round: 0, worker_offset: 0, single_threaded: false, is_last: true }
    }
}

/// Carries out an exchange between these workers: a row for each part, but for the last parts, which are
/// the remote_rows'. All rows and messages are of the same length.
///
/// # Panics
/// If rows and parts do not fit together, or a part names a worker that has none.
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
pub fn exchange(mut rows: Vec<WorkerVectors<'_>>, remote_rows: &[RemoteRow], parts: &[RowPlan], options: MixOptions) {
    let all = rows.len() + remote_rows.len();
    assert_eq!(all, parts.len(), "a row or a remote for every part");
    let width = rows.first().map_or(0, |row| row.model.len());
    if width == 0 {
        return;
    }
    compress(&mut rows, parts, options);
    let program = Program::new(parts, remote_rows, options.server);
    let block = (BLOCK_BYTES / (3 * rows.len().max(program.messages.len()) * size_of::<f32>())).clamp(16, 16 * 1024);
    // One thread: this one, which need not wake another.
    let alone = options.single_threaded || rayon::current_num_threads() == 1;
    if alone || width <= block {
        program.run(&mut rows, 0, block);
        return;
    }
    // The same columns of every row, as one task's own.
    let tasks = (8 * rayon::current_num_threads()).min(width.div_ceil(block));
    let piece = width.div_ceil(tasks).next_multiple_of(16);
    let mut pieces: Vec<Vec<WorkerVectors<'_>>> = Vec::with_capacity(tasks);
    while rows[0].model.len() > piece {
        let rest = rows.iter_mut().map(|row| row.split_off(piece)).collect();
        pieces.push(std::mem::replace(&mut rows, rest));
    }
    pieces.push(rows);
    pieces.par_iter_mut().enumerate().for_each(|(number, rows)| program.run(rows, number * piece, block));
}

impl MixOptions {
    /// What a random choice for a row depends on.
    pub fn draw(&self, row: RowIndex) -> [u64; 2] {
        [row.0.wrapping_add_signed(self.worker_offset) as u64, self.round]
    }
}

/// Messages of a worker that is in another process, for those here who hear it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteRow {
    /// Its messages as they arrived.
    pub messages: Vec<Buffer>,
}

impl RemoteRow {
    /// Its part in an exchange as this row: it is heard, and nothing becomes of it here.
    pub fn part(&self, row: RowIndex) -> RowPlan {
        RowPlan {
            row,
            // What they are made of is not known here, and not needed.
            messages: vec![Outgoing::of([]); self.messages.len()],
            plan: Plan::default(),
        }
    }
}

/// Replaces rows of statistics by weighted sums of them and of remote ones, which are numbered behind them.
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
    plans.extend(remote.map(|(row, remote)| remote.part(RowIndex(row))));
    let vectors = |model| WorkerVectors { model, step: &[], state_vectors: vec![] };
    let rows = rows.into_iter().map(vectors).collect();
    exchange(rows, &remote_rows, &plans, MixOptions::default());
}

impl<'a> WorkerVectors<'a> {
    /// What a message of this row would be on its way: its content, or the compressed difference from
    /// the public copy.
    pub fn outgoing(&self, message: &Outgoing, draw: &[u64]) -> Vec<f32> {
        let mut content = vec![0.0; self.model.len()];
        self.write_outgoing(message, draw, &mut content);
        content
    }

    /// Writes [that](Self::outgoing) to a place of the same length.
    pub fn write_outgoing(&self, message: &Outgoing, draw: &[u64], content: &mut [f32]) {
        combine_own(content, &message.content, self, 0);
        if let Some((copy, compression)) = message.public_copy {
            let copy = self.state_vectors[copy].iter();
            content.iter_mut().zip(copy).for_each(|(d, c)| *d -= c);
            compression.apply(content, draw);
        }
    }

    /// Some columns of one of its vectors.
    fn own(&self, vector: Vector, from: usize, length: usize) -> &[f32] {
        match vector {
            Vector::Model => &self.model[from..from + length],
            Vector::Step => &self.step[from..from + length],
            Vector::State(index) => &self.state_vectors[index][from..from + length],
        }
    }

    /// Cuts the row at a column; the columns from there on are the result.
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

/// Brings the public copies up to date: adds what arrives of the difference to them.
fn compress(rows: &mut [WorkerVectors<'_>], parts: &[RowPlan], options: MixOptions) {
    let update = |(row, part): (&mut WorkerVectors<'_>, &RowPlan)| {
        for message in &part.messages {
            let Some((copy, _)) = message.public_copy else {
                continue;
            };
            let difference = row.outgoing(message, &options.draw(part.row));
            let copy = &mut *row.state_vectors[copy];
            copy.iter_mut().zip(difference).for_each(|(c, d)| *c += d);
        }
    };
    let compresses = |part: &RowPlan| part.messages.iter().any(|m| m.public_copy.is_some());
    if parts.iter().any(compresses) {
        rows.par_iter_mut().zip(parts).for_each(update);
    }
}

/// `sum` = a combination of a row's own vectors, from column `from` on.
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
