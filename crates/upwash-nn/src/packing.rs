//! The order of weights in memory: as the model has them, and as the tiles read them.

use crate::{BLOCK, Real};

/// Marks a row of zeros, for the channels that fill up a block.
const ZERO: usize = usize::MAX;

/// How the weights of a layer are packed: blocks x rows x 16 lanes. Each lane of a row is a weight.
#[derive(Debug)]
pub(crate) struct Packing {
    /// The position of the weight in lane 0 of block 0, for every row.
    rows: Vec<usize>,
    /// The number of lanes in all blocks.
    lanes: usize,
    /// The distance of the weights of two lanes.
    lane_step: usize,
}

impl Packing {
    /// Packs `lanes` lanes whose weights are `lane_step` apart. `rows` has the first weight of each row, or `None` for a
    /// row of zeros.
    pub(crate) fn new(lanes: usize, lane_step: usize, rows: impl IntoIterator<Item = Option<usize>>) -> Self {
        Self { rows: rows.into_iter().map(|row| row.unwrap_or(ZERO)).collect(), lanes, lane_step }
    }

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.lanes.div_ceil(BLOCK)
    }

    /// The number of packed elements.
    pub(crate) fn len(&self) -> usize {
        self.blocks() * self.rows.len() * BLOCK
    }

    /// Packs weights.
    pub(crate) fn pack<R: Real>(&self, weights: &[R], packed: &mut [R]) {
        let panels = packed.chunks_exact_mut(self.rows.len() * BLOCK);
        for (block, panel) in panels.enumerate() {
            let lanes = (self.lanes - block * BLOCK).min(BLOCK);
            let first = block * BLOCK * self.lane_step;
            for (lanes_of_row, &row) in panel.as_chunks_mut::<BLOCK>().0.iter_mut().zip(&self.rows) {
                *lanes_of_row = [R::default(); BLOCK];
                if row != ZERO {
                    let weights = weights[first + row..].iter().step_by(self.lane_step);
                    lanes_of_row[..lanes].iter_mut().zip(weights).for_each(|(lane, &weight)| *lane = weight);
                }
            }
        }
    }

    /// Writes packed numbers to their places among the weights.
    pub(crate) fn unpack<R: Real>(&self, packed: &[R], weights: &mut [R]) {
        let panels = packed.chunks_exact(self.rows.len() * BLOCK);
        for (block, panel) in panels.enumerate() {
            let lanes = (self.lanes - block * BLOCK).min(BLOCK);
            let first = block * BLOCK * self.lane_step;
            for (lanes_of_row, &row) in panel.as_chunks::<BLOCK>().0.iter().zip(&self.rows) {
                if row != ZERO {
                    let weights = weights[first + row..].iter_mut().step_by(self.lane_step);
                    weights.zip(&lanes_of_row[..lanes]).for_each(|(weight, &lane)| *weight = lane);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_undoes_packing() {
        // 18 outputs of 2 inputs, the inputs filled up with a third.
        let packing = Packing::new(18, 2, [Some(0), Some(1), None]);
        let weights: Vec<f32> = (0..36u8).map(f32::from).collect();
        let mut packed = vec![-1.0; packing.len()];
        packing.pack(&weights, &mut packed);
        assert_eq!(packed.len(), 2 * 3 * BLOCK);
        assert_eq!(packed[..3], [0.0, 2.0, 4.0]);
        assert_eq!(packed[BLOCK..][..3], [1.0, 3.0, 5.0]);
        assert!(packed[2 * BLOCK..][..BLOCK].iter().all(|&x| x == 0.0));
        assert_eq!(packed[3 * BLOCK..][..3], [32.0, 34.0, 0.0]);
        let mut again = vec![0.0; 36];
        packing.unpack(&packed, &mut again);
        assert_eq!(again, weights);
    }
}
