//! In which order a dynamic schedule takes its graphs.

use crate::random::Stream;

/// In which order the graphs of a dynamic schedule come.
///
/// ```
/// use upwash_topology::Order;
/// assert_eq!(Order::default(), Order::InTurn { start: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// One after the other, one round each, beginning with `start`.
    InTurn {
        /// The graph of round 0.
        start: usize,
    },
    /// Any of them, drawn anew for every round.
    Random {
        /// What the draws depend on.
        seed: u64,
    },
    /// As the code released with the AL-DSGD paper does it, by the batch's number b in its epoch:
    /// an even b takes the second graph; an odd b takes the third if it divides by 3 (and there is
    /// a third), otherwise the first.
    Released {
        /// How many rounds an epoch has.
        rounds_per_epoch: u64,
    },
}

impl Default for Order {
    fn default() -> Self {
        Self::InTurn { start: 0 }
    }
}

impl Order {
    /// Which of `copies` graphs has round `index`, and how many rounds it has had before.
    pub(super) fn turn(self, copies: usize, index: u64) -> (usize, u64) {
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

/// How many of the first `batches` batches of an epoch go to `copy`.
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
    fn the_released_counts_agree_with_counting() {
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
