//! An exchange compiled for many columns: the messages to form, and the sums to compute from them.

use super::{RemoteRow, WorkerVectors, add, combine_own};
use crate::algorithm::{Assignment, Outgoing, RowPlan, Vector};
use crate::ids::RowIndex;

/// An exchange in single precision, with indices of messages instead of senders.
pub(super) struct Program<'a> {
    /// The messages that some plan uses.
    pub(super) messages: Vec<Source<'a>>,
    /// The number of messages that are formed here.
    formed: usize,
    /// For each mean of all workers, the messages that it averages.
    means: Vec<Vec<usize>>,
    /// The sums of each row.
    rows: Vec<Vec<Sum>>,
}

pub(super) enum Source<'a> {
    /// A combination of a row's own vectors, with its index among the formed messages.
    Formed { row: usize, content: Vec<(Vector, f64)>, index: usize },
    /// A message received from another process.
    Remote(&'a [f32]),
}

struct Sum {
    target: Vector,
    own: Vec<(Vector, f32)>,
    messages: Option<MessageSum>,
    mean: Option<(usize, f32)>,
}

/// [`Differences`](crate::algorithm::Differences) in single precision, with indices of messages instead of senders.
struct MessageSum {
    reference: usize,
    weight: f32,
    others: Vec<(usize, f32)>,
}

/// The messages that are used, as they are found in the plans.
struct Messages<'p, 'a> {
    plans: &'p [RowPlan],
    remote_rows: &'a [RemoteRow],
    server: Option<RowIndex>,
    /// The position in `plans` of each row.
    positions: Vec<usize>,
    /// The most messages of a row.
    per_row: usize,
    /// The index of each message of each plan; `usize::MAX` for those that no plan has used so far.
    indices: Vec<usize>,
    used: Vec<Source<'a>>,
    formed: usize,
    /// The index of the mean of each message; `usize::MAX` for those that no plan has used so far.
    mean_indices: Vec<usize>,
    means: Vec<Vec<usize>>,
}

impl<'p, 'a> Messages<'p, 'a> {
    fn new(plans: &'p [RowPlan], remote_rows: &'a [RemoteRow], server: Option<RowIndex>) -> Self {
        let largest = plans.iter().map(|plan| plan.row.0).max().unwrap_or(0);
        let mut positions = vec![usize::MAX; largest + 1];
        for (position, plan) in plans.iter().enumerate() {
            positions[plan.row.0] = position;
        }
        let per_row = plans.iter().map(|plan| plan.messages.len()).max().unwrap_or(0);
        Self {
            plans,
            remote_rows,
            server,
            positions,
            per_row,
            indices: vec![usize::MAX; plans.len() * per_row],
            used: Vec::new(),
            formed: 0,
            mean_indices: vec![usize::MAX; per_row],
            means: Vec::new(),
        }
    }

    /// The index of a message, which is used from now on.
    fn index(&mut self, position: usize, message_index: usize) -> usize {
        let index = &mut self.indices[position * self.per_row + message_index];
        if *index == usize::MAX {
            *index = self.used.len();
            let local = self.plans.len() - self.remote_rows.len();
            self.used.push(match position.checked_sub(local) {
                Some(remote) => Source::Remote(&self.remote_rows[remote].messages[message_index]),
                None => {
                    let content = received(&self.plans[position].messages[message_index]);
                    Source::Formed { row: position, content, index: self.formed }
                }
            });
            self.formed += usize::from(position < local);
        }
        *index
    }

    fn index_of_sender(&mut self, sender: RowIndex, message_index: usize) -> usize {
        let position = self.positions.get(sender.0).copied().unwrap_or(usize::MAX);
        assert!(position != usize::MAX, "no plan for {sender:?}, whose message is used");
        self.index(position, message_index)
    }

    /// The index of the mean of this message of all workers but the server.
    fn index_of_mean(&mut self, message_index: usize) -> usize {
        if self.mean_indices[message_index] == usize::MAX {
            self.mean_indices[message_index] = self.means.len();
            let (plans, server) = (self.plans, self.server);
            let counted = (0..plans.len()).filter(|&position| Some(plans[position].row) != server);
            let counted = counted.map(|position| self.index(position, message_index)).collect();
            self.means.push(counted);
        }
        self.mean_indices[message_index]
    }

    fn sum(&mut self, plan: &RowPlan, assignment: &Assignment<RowIndex>) -> Sum {
        let message_index = assignment.message_index;
        let messages = assignment.differences(plan.row).map(|sum| MessageSum {
            reference: self.index_of_sender(sum.reference, message_index),
            weight: sum.weight as f32,
            others: sum
                .others
                .into_iter()
                .map(|(sender, weight)| (self.index_of_sender(sender, message_index), weight as f32))
                .collect(),
        });
        let mean = (assignment.mean != 0.0).then(|| (self.index_of_mean(message_index), assignment.mean as f32));
        let own = assignment.own.iter().filter(|entry| entry.1 != 0.0);
        let own = own.map(|&(vector, weight)| (vector, weight as f32)).collect();
        Sum { target: assignment.target, own, messages, mean }
    }
}

impl<'a> Program<'a> {
    pub(super) fn new(plans: &[RowPlan], remote_rows: &'a [RemoteRow], server: Option<RowIndex>) -> Self {
        let mut messages = Messages::new(plans, remote_rows, server);
        let mut rows = Vec::with_capacity(plans.len());
        for plan in plans {
            rows.push(plan.plan.assignments.iter().map(|assignment| messages.sum(plan, assignment)).collect());
        }
        Self { messages: messages.used, formed: messages.formed, means: messages.means, rows }
    }

    /// Carries out the exchange on `rows`, whose first column is `column`, in blocks of `block` columns.
    pub(super) fn run(&self, rows: &mut [WorkerVectors<'_>], column: usize, block: usize) {
        let width = rows[0].model.len();
        let slots = self.formed + self.means.len();
        let mut scratch = vec![0.0; slots * block.min(width)];
        for from in (0..width).step_by(block) {
            let length = block.min(width - from);
            let scratch = &mut scratch[..slots * length];
            let (formed, means) = scratch.split_at_mut(self.formed * length);
            for message in &self.messages {
                if let Source::Formed { row, content, index } = message {
                    let sent = &mut formed[index * length..][..length];
                    combine_own(sent, content, &rows[*row], from);
                }
            }
            let message = |source: &Source<'a>| match source {
                Source::Formed { index, .. } => &formed[index * length..][..length],
                Source::Remote(values) => &values[column + from..][..length],
            };
            let messages: Vec<&[f32]> = self.messages.iter().map(message).collect();
            for (mean, counted) in means.chunks_exact_mut(length).zip(&self.means) {
                // Sums differences from the first message: the mean of equal values is exact, bit for bit.
                let (count, first) = (counted.len() as f32, messages[counted[0]]);
                mean.fill(0.0);
                for &index in &counted[1..] {
                    let pairs = messages[index].iter().zip(first);
                    let differences = mean.iter_mut().zip(pairs);
                    differences.for_each(|(sum, (x, f))| *sum += x - f);
                }
                let sums = mean.iter_mut().zip(first);
                sums.for_each(|(sum, f)| *sum = f + *sum / count);
            }
            for (row, sums) in rows.iter_mut().zip(&self.rows) {
                for sum in sums {
                    sum.carry_out(row, from, length, &messages, means);
                }
            }
        }
    }
}

/// What receivers get of a message: its content, or the public copy.
fn received(message: &Outgoing) -> Vec<(Vector, f64)> {
    match message.public_copy {
        None => message.content.clone(),
        Some((copy, _)) => vec![(Vector::State(copy), 1.0)],
    }
}

impl Sum {
    fn carry_out(&self, row: &mut WorkerVectors<'_>, from: usize, length: usize, messages: &[&[f32]], means: &[f32]) {
        // Takes the target out of the row, so that the row's other vectors can be read.
        let whole = match self.target {
            Vector::Model => std::mem::take(&mut row.model),
            Vector::State(index) => std::mem::take(&mut row.state_vectors[index]),
            Vector::Step => unreachable!("algorithms do not assign steps"),
        };
        let target = &mut whole[from..from + length];
        let mut initialized = self.combine_own(target, row, from);
        if let Some(sum) = &self.messages {
            sum.accumulate(target, initialized, messages);
            initialized = true;
        }
        if let Some((index, weight)) = self.mean {
            let mean = &means[index * length..][..length];
            let pairs = target.iter_mut().zip(mean);
            match initialized {
                true => pairs.for_each(|(t, x)| *t += weight * x),
                false => pairs.for_each(|(t, x)| *t = weight * x),
            }
        } else if !initialized {
            target.fill(0.0);
        }
        match self.target {
            Vector::Model => row.model = whole,
            Vector::State(index) => row.state_vectors[index] = whole,
            Vector::Step => {}
        }
    }

    /// Sets the target to the combination of the row's own vectors. Returns false if there are none.
    fn combine_own(&self, target: &mut [f32], row: &WorkerVectors<'_>, from: usize) -> bool {
        let itself = self.own.iter().find(|entry| entry.0 == self.target);
        match itself {
            None => match self.own.first() {
                None => return false,
                Some((vector, weight)) => {
                    let first = row.own(*vector, from, target.len());
                    let scaled = first.iter().map(|x| weight * x);
                    target.iter_mut().zip(scaled).for_each(|(t, x)| *t = x);
                }
            },
            Some((_, 1.0)) => {}
            Some((_, weight)) => target.iter_mut().for_each(|x| *x *= weight),
        }
        let done = usize::from(itself.is_none());
        let rest = self.own.iter().filter(|entry| entry.0 != self.target);
        for (vector, weight) in rest.skip(done) {
            add(target, row.own(*vector, from, target.len()), *weight);
        }
        true
    }
}

impl MessageSum {
    /// Adds the sum to `target`, or overwrites it if it is not `initialized`. Differences come first and the reference
    /// last, so that small values are summed first.
    fn accumulate(&self, target: &mut [f32], initialized: bool, messages: &[&[f32]]) {
        let (reference, weight) = (messages[self.reference], self.weight);
        let Some(last) = self.others.len().checked_sub(1) else {
            let pairs = target.iter_mut().zip(reference);
            match initialized {
                true => pairs.for_each(|(t, r)| *t += weight * r),
                false => pairs.for_each(|(t, r)| *t = weight * r),
            }
            return;
        };
        // Two messages at a time, for half as many passes over the block.
        for (index, pair) in self.others.chunks(2).enumerate() {
            let is_last = index == last / 2;
            match (initialized || index > 0, is_last) {
                (false, true) => pass(target, reference, messages, pair, |_, d, r| weight * r + d),
                (true, true) => pass(target, reference, messages, pair, |t, d, r| weight * r + (t + d)),
                (false, false) => pass(target, reference, messages, pair, |_, d, _| d),
                (true, false) => pass(target, reference, messages, pair, |t, d, _| t + d),
            }
        }
    }
}

/// One pass over a block: sets the target to `combine` of the target, the weighted differences of one or two messages,
/// and the reference.
fn pass(
    target: &mut [f32],
    reference: &[f32],
    messages: &[&[f32]],
    others: &[(usize, f32)],
    combine: impl Fn(f32, f32, f32) -> f32,
) {
    let targets = target.iter_mut().zip(reference);
    match *others {
        [(a, wa), (b, wb)] => {
            for (((t, r), p), q) in targets.zip(messages[a]).zip(messages[b]) {
                *t = combine(*t, wa * (p - r) + wb * (q - r), *r);
            }
        }
        [(a, wa)] => {
            for ((t, r), p) in targets.zip(messages[a]) {
                *t = combine(*t, wa * (p - r), *r);
            }
        }
        _ => {}
    }
}
