//! The order in which a dynamic schedule uses its graphs.

use crate::random::Stream;

/// The order in which a dynamic schedule uses its graphs.
///
/// ```
/// use upwash_topology::Order;
/// assert_eq!(Order::default(), Order::InTurn { start: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// One after the other, one round each, starting with `start`.
    InTurn {
        /// The graph of round 0.
        start: usize,
    },
    /// A graph drawn at random for every round.
    Random {
        /// The random seed.
        seed: u64,
    },
    /// The order of the code released with the AL-DSGD paper, which depends on the index b of the batch in its epoch.
    /// An even b uses the second graph. An odd b uses the third if b is divisible by 3 (and there is a third graph),
    /// otherwise the first.
    Released {
        /// The number of rounds per epoch.
        rounds_per_epoch: u64,
    },
}

impl Default for Order {
    fn default() -> Self {
        Self::InTurn { start: 0 }
    }
}

impl Order {
    /// Returns which of `copies` graphs round `index` uses, and the round number that its schedule counts: the number
    /// of earlier rounds that used it, or, in a random order, `index`.
    pub(super) fn graph_at(self, copies: usize, index: u64) -> (usize, u64) {
        let n = copies as u64;
        match self {
            Self::InTurn { start } => (((index + start as u64 % n) % n) as usize, index / n),
            Self::Random { seed } => (Stream::new(seed, "order of graphs", &[index]).below(copies), index),
            Self::Released { rounds_per_epoch } => {
                let (epoch, batch) = (index / rounds_per_epoch, index % rounds_per_epoch);
                let copy = released_copy(copies, batch);
                let before = |batches| released_count(copies, copy, batches);
                (copy, epoch * before(rounds_per_epoch) + before(batch))
            }
        }
    }
}

fn released_copy(copies: usize, batch: u64) -> usize {
    match copies {
        1 => 0,
        _ if batch.is_multiple_of(2) => 1,
        3 if batch.is_multiple_of(3) => 2,
        _ => 0,
    }
}

/// Returns how many of the first `batches` batches of an epoch use `copy`.
fn released_count(copies: usize, copy: usize, batches: u64) -> u64 {
    let second = if copies > 1 { batches.div_ceil(2) } else { 0 };
    let third = if copies > 2 { (batches + 2) / 6 } else { 0 }; // 3, 9, 15, ...
    match copy {
        1 => second,
        2 => third,
        _ => batches - second - third,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_count_agrees_with_counting_batches() {
        for copies in 1..=3 {
            let mut counts = [0; 3];
            for batch in 0..200 {
                for (copy, &count) in counts.iter().enumerate() {
                    assert_eq!(released_count(copies, copy, batch), count, "{copies} {copy} {batch}");
                }
                counts[released_copy(copies, batch)] += 1;
            }
        }
    }
}
