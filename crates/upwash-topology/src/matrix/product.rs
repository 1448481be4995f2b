//! Matrix products over tiles that stay in registers.

use super::Matrix;
use rayon::prelude::*;
use std::ops::Mul;

/// A tile of the product has this many rows and columns.
const TILE: usize = 4;
/// A tile's sums run over this many products before they go to memory: what they read then stays in the cache.
const DEPTH: usize = 256;
/// The number of columns of the product that one thread computes at a time.
const COLUMNS: usize = 64;

impl Mul for &Matrix {
    type Output = Matrix;

    fn mul(self, other: Self) -> Matrix {
        assert_eq!(self.columns(), other.rows, "matrices that can be multiplied");
        let mut product = Matrix::zeros(self.rows, other.columns());
        let shape = (self.rows, self.columns());
        add_product(&mut product.entries, shape, |i, k| self[(i, k)], |k, j| other[(k, j)]);
        product
    }
}

/// Adds a product to `sum`, which holds its columns one after the other: `left` has the given rows and columns, and
/// `right` as many columns as `sum`.
pub(super) fn add_product(
    sum: &mut [f64],
    (rows, depth): (usize, usize),
    left: impl Fn(usize, usize) -> f64 + Sync,
    right: impl Fn(usize, usize) -> f64 + Sync,
) {
    let tasks = sum.par_chunks_mut((rows * COLUMNS).max(1)).enumerate();
    tasks.with_min_len(1 + (1 << 18) / (rows * COLUMNS * depth).max(1)).for_each(|(task, sum)| {
        for start in (0..depth).step_by(DEPTH) {
            let depth = start..depth.min(start + DEPTH);
            let right_tiles: Vec<Vec<[f64; TILE]>> = (0..sum.len() / rows)
                .step_by(TILE)
                .map(|first| pack(depth.clone(), sum.len() / rows - first, |k, j| right(k, task * COLUMNS + first + j)))
                .collect();
            for top in (0..rows).step_by(TILE) {
                let left_tile = pack(depth.clone(), rows - top, |k, i| left(top + i, k));
                for (right_tile, columns) in right_tiles.iter().zip(sum.chunks_mut(rows * TILE)) {
                    let tile = multiply(&left_tile, right_tile);
                    for (column, sums) in columns.chunks_exact_mut(rows).zip(&tile) {
                        column[top..].iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
                    }
                }
            }
        }
    });
}

/// Copies a strip of an operand so that a tile reads it in order. Beyond `width` there are zeros.
fn pack(depth: std::ops::Range<usize>, width: usize, entry: impl Fn(usize, usize) -> f64) -> Vec<[f64; TILE]> {
    depth.map(|k| std::array::from_fn(|i| if i < width { entry(k, i) } else { 0.0 })).collect()
}

/// Returns the columns of a tile.
fn multiply(left: &[[f64; TILE]], right: &[[f64; TILE]]) -> [[f64; TILE]; TILE] {
    let mut sums = [[0.0; TILE]; TILE];
    for (left, right) in left.iter().zip(right) {
        for (column, factor) in sums.iter_mut().zip(right) {
            column.iter_mut().zip(left).for_each(|(sum, entry)| *sum += entry * factor);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_sums_of_products() {
        for (rows, depth, columns) in [(1, 1, 1), (3, 5, 2), (4, 300, 67), (9, 0, 3), (0, 2, 2), (70, 13, 130)] {
            let a = Matrix::from_fn(rows, depth, |i, j| ((i * 7 + j * 3) % 11) as f64 - 5.0);
            let b = Matrix::from_fn(depth, columns, |i, j| ((i * 5 + j * 2) % 13) as f64 - 6.0);
            let product = &a * &b;
            for i in 0..rows {
                for j in 0..columns {
                    let exact: f64 = (0..depth).map(|k| a[(i, k)] * b[(k, j)]).sum();
                    assert_eq!(product[(i, j)], exact, "{rows} x {depth} x {columns}: {i}, {j}");
                }
            }
        }
    }
}
