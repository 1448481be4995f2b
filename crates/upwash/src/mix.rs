//! Mixing on the CPU: X' = A X - C U in one pass over memory.
//!
//! All models of the process lie in one buffer, a row each, and so do their updates. The buffers are
//! walked in blocks of columns that fit into the cache: a block's messages are formed, every row's
//! sum is taken from them, and the block is written back. Each number of X and U is read from
//! memory once and each of X written once, which is the least that can be done. Every column is
//! summed in the order of the plan, so that the result does not depend on the number of threads.

use crate::algorithm::{Message, Plan};
use rayon::prelude::*;

/// Bytes of a block's models, updates and messages together: about half of a core's L2 cache.
const BLOCK_BYTES: usize = 192 * 1024;

/// Replaces each row of `models` by its plan's combination. `models` and `updates` hold a row of
/// `width` numbers for each plan; the plans name senders by row. `updates` may be empty where
/// neither the messages nor the plans have a part of them.
///
/// # Panics
/// If the buffers and plans do not fit together.
///
/// ```
/// use upwash::algorithm::{Message, Plan};
/// let half = |own_update| Plan { messages: vec![(0, 0.5), (1, 0.5)], own_update };
/// let (mut x, u) = ([2.0, 4.0], [1.0, 1.0]);
/// upwash::mix::mix(&mut x, &u, 1, Message::Stepped, &[half(0.0), half(0.0)]);
/// assert_eq!(x, [2.0, 2.0]); // the mean of 2 - 1 and 4 - 1
/// ```
pub fn mix(models: &mut [f32], updates: &[f32], width: usize, message: Message, plans: &[Plan]) {
    let rows = plans.len();
    assert_eq!(models.len(), rows * width, "a row of models for every plan");
    let unused = message != Message::Stepped && plans.iter().all(|plan| plan.own_update == 0.0);
    assert!(
        updates.len() == rows * width || updates.is_empty() && unused,
        "a row of updates for every plan"
    );
    if rows == 0 || width == 0 {
        return;
    }
    let plans: Vec<FlatPlan> = plans.iter().map(FlatPlan::new).collect();
    let block = (BLOCK_BYTES / (3 * rows * size_of::<f32>())).clamp(16, 16 * 1024);
    // The same columns of every row, as one task's own.
    let mut blocks: Vec<Vec<&mut [f32]>> = Vec::new();
    blocks.resize_with(width.div_ceil(block), || Vec::with_capacity(rows));
    for row in models.chunks_exact_mut(width) {
        row.chunks_mut(block)
            .zip(&mut blocks)
            .for_each(|(part, block)| block.push(part));
    }
    blocks
        .par_iter_mut()
        .enumerate()
        .for_each_init(Vec::new, |scratch, (index, models)| {
            let (from, length) = (index * block, models[0].len());
            let update = |row: usize| match updates {
                [] => updates,
                _ => &updates[row * width + from..][..length],
            };
            scratch.resize(rows * length, 0.0);
            for (row, sent) in scratch.chunks_exact_mut(length).enumerate() {
                match message {
                    Message::Early | Message::Model => sent.copy_from_slice(models[row]),
                    Message::Stepped => {
                        for ((out, x), u) in
                            sent.iter_mut().zip(models[row].iter()).zip(update(row))
                        {
                            *out = *x - *u;
                        }
                    }
                }
            }
            for (row, plan) in plans.iter().enumerate() {
                plan.combine(models[row], scratch, update(row));
            }
        });
}

/// A plan in single precision.
struct FlatPlan {
    messages: Vec<(usize, f32)>,
    own_update: f32,
}

impl FlatPlan {
    fn new(plan: &Plan) -> Self {
        let nonzero = plan.messages.iter().filter(|entry| entry.1 != 0.0);
        Self {
            messages: nonzero
                .map(|&(sender, weight)| (sender, weight as f32))
                .collect(),
            own_update: plan.own_update as f32,
        }
    }

    /// `model` = the weighted sum of the rows of `messages`, plus the own term. Two messages are
    /// taken at a time: half of the passes over the block.
    fn combine(&self, model: &mut [f32], messages: &[f32], update: &[f32]) {
        let length = model.len();
        let row = |sender: usize| &messages[sender * length..][..length];
        if self.own_update == 0.0 {
            model.fill(0.0);
        } else {
            model
                .iter_mut()
                .zip(update)
                .for_each(|(x, u)| *x = self.own_update * u);
        }
        let mut pairs = self.messages.chunks_exact(2);
        for pair in &mut pairs {
            let ((a, wa), (b, wb)) = (pair[0], pair[1]);
            for ((x, p), q) in model.iter_mut().zip(row(a)).zip(row(b)) {
                *x += wa * p + wb * q;
            }
        }
        for &(sender, weight) in pairs.remainder() {
            model
                .iter_mut()
                .zip(row(sender))
                .for_each(|(x, p)| *x += weight * p);
        }
    }
}
