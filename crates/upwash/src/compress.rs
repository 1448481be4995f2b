//! Compression of vectors before they are sent.

use upwash_topology::random::Stream;

/// How a vector is compressed. The receiver gets the nearest (or a random) vector among those that need few bytes.
///
/// ```
/// use upwash::compress::Compression;
/// let mut vector = [3.0, -1.0, 0.5, -4.0];
/// Compression::TopK(0.5).apply(&mut vector, &[]);
/// assert_eq!(vector, [3.0, 0.0, 0.0, -4.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// No compression.
    None,
    /// Sends this fraction of the entries: those with the largest magnitude.
    TopK(f64),
    /// Sends this fraction of the entries, drawn at random. Sender and receivers draw the same indices.
    RandomK(f64),
    /// Sends the sign of each entry and the mean magnitude.
    Sign,
    /// Sends one byte per entry and the largest magnitude.
    EightBit,
}

impl Compression {
    /// Replaces a vector by the vector that receivers get. `draw` identifies the draw of a random compressor.
    pub fn apply(self, vector: &mut [f32], draw: &[u64]) {
        let count = vector.len();
        match self {
            Self::None => {}
            Self::TopK(fraction) => {
                let kept = kept(fraction, count);
                if kept == count {
                    return;
                }
                // By its bits, NaN is larger than every number: compression must not hide it.
                let mut sizes: Vec<u32> = vector.iter().map(|x| x.abs().to_bits()).collect();
                let (_, &mut threshold, _) = sizes.select_nth_unstable(count - kept);
                let above = vector.iter().filter(|x| x.abs().to_bits() > threshold).count();
                let mut ties = kept - above;
                for x in vector {
                    let size = x.abs().to_bits();
                    if size < threshold || size == threshold && ties == 0 {
                        *x = 0.0;
                    } else if size == threshold {
                        ties -= 1;
                    }
                }
            }
            Self::RandomK(fraction) => {
                let draw = Draw::new(fraction, count, draw);
                let cut = |(index, x): (usize, &mut f32)| {
                    if !draw.has(index) {
                        *x = 0.0;
                    }
                };
                vector.iter_mut().enumerate().for_each(cut);
            }
            Self::Sign => {
                let sum: f64 = vector.iter().map(|x| f64::from(x.abs())).sum();
                let size = (sum / count.max(1) as f64) as f32;
                let sign = |x: &mut f32| *x = if *x == 0.0 { size } else { x.signum() * size };
                vector.iter_mut().for_each(sign);
            }
            Self::EightBit => {
                // A fold with `f32::max` would skip NaN.
                let largest = vector.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
                let scale = f32::from_bits(largest) / 127.0;
                if scale != 0.0 {
                    let round = |x: &mut f32| *x = (*x / scale).round_ties_even() * scale;
                    vector.iter_mut().for_each(round);
                }
            }
        }
    }

    /// The size in bytes of a compressed vector of `count` entries on the wire.
    ///
    /// ```
    /// # use upwash::compress::Compression;
    /// assert_eq!(Compression::None.bytes(1000), 4000);
    /// assert_eq!(Compression::TopK(0.01).bytes(1000), 80); // ten values and their indices
    /// assert_eq!(Compression::RandomK(0.01).bytes(1000), 48); // ten values and the draw
    /// assert_eq!(Compression::Sign.bytes(1000), 129);
    /// assert_eq!(Compression::EightBit.bytes(1000), 1004);
    /// ```
    pub fn bytes(self, count: usize) -> u64 {
        let bytes = match self {
            Self::None => 4 * count,
            // Indices as integers or as a bit mask, whichever is shorter.
            Self::TopK(fraction) => {
                let kept = kept(fraction, count);
                let indices = (4 * kept).min(count.div_ceil(8));
                (4 * kept + indices).min(4 * count)
            }
            Self::RandomK(fraction) => (4 * kept(fraction, count) + 8).min(4 * count),
            Self::Sign => count.div_ceil(8) + 4,
            Self::EightBit => count + 4,
        };
        bytes as u64
    }
}

/// The number of entries that a fraction of `count` entries keeps: at least one.
pub fn kept(fraction: f64, count: usize) -> usize {
    ((fraction * count as f64).round() as usize).clamp(count.min(1), count)
}

/// A random subset of indices that can be tested index by index. It contains the indices i for which
/// offset + i x stride, modulo the number of indices, is below the number of chosen ones. The stride is coprime to the
/// number of indices. Every index is chosen equally often.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// The number of indices.
    pub count: u64,
    /// The number of chosen indices.
    pub chosen: u64,
    /// The offset.
    pub offset: u64,
    /// The stride.
    pub stride: u64,
}

impl Draw {
    /// Draws a fraction of `count` indices. The result depends on `draw` only.
    pub fn new(fraction: f64, count: usize, draw: &[u64]) -> Self {
        let mut stream = Stream::new(0, "random part", draw);
        let chosen = kept(fraction, count) as u64;
        let offset = stream.below(count.max(1)) as u64;
        let stride = loop {
            let stride = stream.below(count.max(1)) as u64;
            if common_divisor(stride, count as u64) <= 1 {
                break stride;
            }
        };
        Self { count: count as u64, chosen, offset, stride }
    }

    /// Whether an index is chosen.
    pub fn has(&self, index: usize) -> bool {
        (self.offset + index as u64 * self.stride) % self.count < self.chosen
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if a == 0 { b } else { common_divisor(b % a, a) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(count: usize, id: u64) -> Vec<f32> {
        let mut stream = Stream::new(3, "test", &[id]);
        (0..count).map(|_| stream.normal() as f32).collect()
    }

    fn squares(vector: &[f32]) -> f64 {
        vector.iter().map(|x| f64::from(*x).powi(2)).sum()
    }

    fn error(compression: Compression, vector: &[f32], draw: u64) -> f64 {
        let mut received = vector.to_vec();
        compression.apply(&mut received, &[draw]);
        let rest: Vec<f32> = vector.iter().zip(&received).map(|(a, b)| a - b).collect();
        squares(&rest) / squares(vector)
    }

    /// CHOCO's theory requires that a compressor loses less than the whole vector, by a known factor.
    #[test]
    fn compression_error_is_bounded() {
        let all = vector(1000, 0);
        assert_eq!(error(Compression::None, &all, 0), 0.0);
        assert!(error(Compression::TopK(0.1), &all, 0) < 0.9);
        assert!(error(Compression::EightBit, &all, 0) < 1e-4);
        // 1 - |x|_1^2 / (d |x|_2^2), to rounding.
        let one: f64 = all.iter().map(|x| f64::from(x.abs())).sum();
        let known = 1.0 - one * one / (1000.0 * squares(&all));
        assert!((error(Compression::Sign, &all, 0) - known).abs() < 1e-6);
        // 1 - k/d on average over draws.
        let mean: f64 = (0..2000).map(|draw| error(Compression::RandomK(0.1), &all, draw)).sum::<f64>() / 2000.0;
        assert!((mean - 0.9).abs() < 0.01, "{mean}");
    }

    #[test]
    fn top_k_and_random_k_keep_exactly_k_entries() {
        for count in [1, 2, 7, 64, 1000] {
            for part in [0.001, 0.1, 0.5, 1.0] {
                for compression in [Compression::TopK(part), Compression::RandomK(part)] {
                    let mut received = vec![1.0; count]; // all equal: ties everywhere
                    compression.apply(&mut received, &[5]);
                    let left = received.iter().filter(|x| **x != 0.0).count();
                    assert_eq!(left, kept(part, count), "{compression:?} of {count}");
                }
            }
        }
        let mut chosen = [0; 10];
        for draw in 0..10_000 {
            let draw = Draw::new(0.3, 10, &[draw]);
            (0..10).for_each(|index| chosen[index] += i32::from(draw.has(index)));
        }
        assert!(chosen.iter().all(|n| (2800..3200).contains(n)), "{chosen:?}");
    }

    #[test]
    fn compression_does_not_hide_nan() {
        for compression in [Compression::TopK(0.25), Compression::Sign, Compression::EightBit] {
            let mut received = [1.0, f32::NAN, 2.0, 3.0];
            compression.apply(&mut received, &[]);
            assert!(received.iter().any(|x| x.is_nan()), "{compression:?}");
        }
    }
}
