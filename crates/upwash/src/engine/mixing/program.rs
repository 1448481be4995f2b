//! An exchange worked out for many columns: which messages are formed, and which sums are made of them.

use super::{RemoteRow, WorkerVectors, add, combine_own};
use crate::algorithm::{Outgoing, RowPlan, Vector};
use crate::ids::RowIndex;

/// An exchange in single precision, with places instead of numbers of workers.
pub(super) struct Program<'a> {
    /// Each message that anyone reads.
    pub(super) messages: Vec<Source<'a>>,
    /// How many of them are formed here.
    formed: usize,
    /// Which of them make a mean of all.
    means: Vec<Vec<usize>>,
    rows: Vec<Vec<Sum>>,
}

pub(super) enum Source<'a> {
    /// A row's own vectors make it, in this place among those that are formed.
    Formed { row: usize, content: Vec<(Vector, f64)>, place: usize },
    /// It has come from elsewhere.
    RemoteRow(&'a [f32]),
}

struct Sum {
    target: Vector,
    own: Vec<(Vector, f32)>,
    heard: Option<HeardSum>,
    mean: Option<(usize, f32)>,
}

/// [`Differences`](crate::algorithm::Differences) in single precision, with places instead of senders.
struct HeardSum {
    reference: usize,
    weight: f32,
    others: Vec<(usize, f32)>,
}

impl<'a> Program<'a> {
    pub(super) fn new(parts: &[RowPlan], remote_rows: &'a [RemoteRow], server: Option<RowIndex>) -> Self {
        let largest = parts.iter().map(|part| part.row.0).max().unwrap_or(0);
        let mut rows = vec![usize::MAX; largest + 1];
        for (row, part) in parts.iter().enumerate() {
            rows[part.row.0] = row;
        }
        let numbers = parts.iter().map(|part| part.messages.len()).max();
        let numbers = numbers.unwrap_or(0);
        // Messages that nobody reads are not formed.
        let mut places = vec![usize::MAX; parts.len() * numbers];
        let (mut messages, mut formed) = (Vec::new(), 0);
        let here = parts.len() - remote_rows.len();
        let mut place = |row: usize, number: usize| {
            let place = &mut places[row * numbers + number];
            if *place == usize::MAX {
                *place = messages.len();
                messages.push(match row.checked_sub(here) {
                    Some(remote) => Source::RemoteRow(&remote_rows[remote].messages[number]),
                    None => Source::Formed { row, content: received(&parts[row].messages[number]), place: formed },
                });
                formed += usize::from(row < here);
            }
            *place
        };
        let mut means: Vec<Vec<usize>> = Vec::new();
        let mut mean_of = vec![usize::MAX; numbers];
        let mut programs = Vec::with_capacity(parts.len());
        for part in parts {
            let mut sums = Vec::with_capacity(part.plan.assignments.len());
            for assignment in &part.plan.assignments {
                let number = assignment.message_index;
                let mut place_of = |sender: RowIndex| {
                    let row = rows.get(sender.0).copied().unwrap_or(usize::MAX);
                    assert!(row != usize::MAX, "{sender:?} is not here");
                    place(row, number)
                };
                let heard = assignment.differences(part.row).map(|sum| HeardSum {
                    reference: place_of(sum.reference),
                    weight: sum.weight as f32,
                    others: sum.others.into_iter().map(|(sender, weight)| (place_of(sender), weight as f32)).collect(),
                });
                let mean = (assignment.mean != 0.0).then(|| {
                    if mean_of[number] == usize::MAX {
                        mean_of[number] = means.len();
                        let counted = (0..parts.len()).filter(|&row| Some(parts[row].row) != server);
                        means.push(counted.map(|row| place(row, number)).collect());
                    }
                    (mean_of[number], assignment.mean as f32)
                });
                let own = assignment.own.iter().filter(|entry| entry.1 != 0.0);
                sums.push(Sum {
                    target: assignment.target,
                    own: own.map(|&(vector, weight)| (vector, weight as f32)).collect(),
                    heard,
                    mean,
                });
            }
            programs.push(sums);
        }
        Self { messages, formed, means, rows: programs }
    }

    /// For rows that begin at this column.
    pub(super) fn run(&self, rows: &mut [WorkerVectors<'_>], column: usize, block: usize) {
        let width = rows[0].model.len();
        let places = self.formed + self.means.len();
        let mut scratch = vec![0.0; places * block.min(width)];
        for from in (0..width).step_by(block) {
            let length = block.min(width - from);
            let scratch = &mut scratch[..places * length];
            let (formed, means) = scratch.split_at_mut(self.formed * length);
            for message in &self.messages {
                if let Source::Formed { row, content, place } = message {
                    let sent = &mut formed[place * length..][..length];
                    combine_own(sent, content, &rows[*row], from);
                }
            }
            let message = |source: &Source<'a>| match source {
                Source::Formed { place, .. } => &formed[place * length..][..length],
                Source::RemoteRow(numbers) => &numbers[column + from..][..length],
            };
            let messages: Vec<&[f32]> = self.messages.iter().map(message).collect();
            for (mean, counted) in means.chunks_exact_mut(length).zip(&self.means) {
                // Differences from the first: the mean of equals is what they are, to the bit.
                let (count, first) = (counted.len() as f32, messages[counted[0]]);
                mean.fill(0.0);
                for &place in &counted[1..] {
                    let pairs = messages[place].iter().zip(first);
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

/// What arrives of a message: its content, or the public copy.
fn received(message: &Outgoing) -> Vec<(Vector, f64)> {
    match message.public_copy {
        None => message.content.clone(),
        Some((copy, _)) => vec![(Vector::State(copy), 1.0)],
    }
}

impl Sum {
    fn carry_out(&self, row: &mut WorkerVectors<'_>, from: usize, length: usize, messages: &[&[f32]], means: &[f32]) {
        // The target is taken out of the row, so that the row's others can be read.
        let whole = match self.target {
            Vector::Model => std::mem::take(&mut row.model),
            Vector::State(index) => std::mem::take(&mut row.state_vectors[index]),
            Vector::Step => unreachable!("steps are the optimizer's"),
        };
        let target = &mut whole[from..from + length];
        let mut begun = self.combine_own(target, row, from);
        if let Some(heard) = &self.heard {
            heard.accumulate(target, begun, messages);
            begun = true;
        }
        if let Some((place, weight)) = self.mean {
            let mean = &means[place * length..][..length];
            let pairs = target.iter_mut().zip(mean);
            match begun {
                true => pairs.for_each(|(t, x)| *t += weight * x),
                false => pairs.for_each(|(t, x)| *t = weight * x),
            }
        } else if !begun {
            target.fill(0.0);
        }
        match self.target {
            Vector::Model => row.model = whole,
            Vector::State(index) => row.state_vectors[index] = whole,
            Vector::Step => {}
        }
    }

    /// What the target is made of among the row's own vectors; whether that is anything.
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

impl HeardSum {
    /// Adds the sum to `target`, or puts it there where nothing has `begun`. Differences come first and
    /// the reference last: what is small is summed while it is small.
    fn accumulate(&self, target: &mut [f32], begun: bool, messages: &[&[f32]]) {
        let (reference, weight) = (messages[self.reference], self.weight);
        let Some(last) = self.others.len().checked_sub(1) else {
            let pairs = target.iter_mut().zip(reference);
            match begun {
                true => pairs.for_each(|(t, r)| *t += weight * r),
                false => pairs.for_each(|(t, r)| *t = weight * r),
            }
            return;
        };
        // Two messages are taken at a time: half of the passes over the block.
        for (number, pair) in self.others.chunks(2).enumerate() {
            let ends = number == last / 2;
            match (begun || number > 0, ends) {
                (false, true) => pass(target, reference, messages, pair, |_, d, r| weight * r + d),
                (true, true) => pass(target, reference, messages, pair, |t, d, r| weight * r + (t + d)),
                (false, false) => pass(target, reference, messages, pair, |_, d, _| d),
                (true, false) => pass(target, reference, messages, pair, |t, d, _| t + d),
            }
        }
    }
}

/// One pass over a block: `combine` of the target, the weighted differences of one message or two, and the
/// reference.
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
