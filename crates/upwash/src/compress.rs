//! Compressing a vector before it is sent.

use upwash_topology::random::Stream;

/// How a vector is made smaller. What arrives is the vector's nearest (or a random) neighbor among
/// those that need few bytes.
///
/// ```
/// use upwash::compress::Compression;
/// let mut vector = [3.0, -1.0, 0.5, -4.0];
/// Compression::TopK(0.5).apply(&mut vector, &[]);
/// assert_eq!(vector, [3.0, 0.0, 0.0, -4.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// Not at all.
    None,
    /// This part of the numbers, the largest ones.
    TopK(f64),
    /// This part of the numbers, drawn at random; sender and receivers draw the same.
    RandomK(f64),
    /// A sign for each number, and their mean size.
    Sign,
    /// A byte for each number, and the largest size.
    EightBit,
}

impl Compression {
    /// Replaces a vector by what arrives of it. `draw` is what a random choice depends on.
    pub fn apply(self, vector: &mut [f32], draw: &[u64]) {
        let count = vector.len();
        match self {
            Self::None => {}
            Self::TopK(part) => {
                let kept = kept(part, count);
                if kept == count {
                    return;
                }
                // NaN is the largest of all: it must not be hidden.
                let mut sizes: Vec<u32> = vector.iter().map(|x| x.abs().to_bits()).collect();
                let (_, &mut least, _) = sizes.select_nth_unstable(count - kept);
                let above = vector.iter().filter(|x| x.abs().to_bits() > least).count();
                let mut ties = kept - above;
                for x in vector {
                    let size = x.abs().to_bits();
                    if size < least || size == least && ties == 0 {
                        *x = 0.0;
                    } else if size == least {
                        ties -= 1;
                    }
                }
            }
            Self::RandomK(part) => {
                let draw = Draw::new(part, count, draw);
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
                // fold with `max` would pass over NaN.
                let largest = vector.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
                let scale = f32::from_bits(largest) / 127.0;
                if scale != 0.0 {
                    let round = |x: &mut f32| *x = (*x / scale).round_ties_even() * scale;
                    vector.iter_mut().for_each(round);
                }
            }
        }
    }

    /// Bytes of a vector of `count` numbers as it would travel.
    ///
    /// ```
    /// # use upwash::compress::Compression;
    /// assert_eq!(Compression::None.bytes(1000), 4000);
    /// assert_eq!(Compression::TopK(0.01).bytes(1000), 80); // ten numbers and their places
    /// assert_eq!(Compression::RandomK(0.01).bytes(1000), 48); // ten numbers and what was drawn
    /// assert_eq!(Compression::Sign.bytes(1000), 129);
    /// assert_eq!(Compression::EightBit.bytes(1000), 1004);
    /// ```
    pub fn bytes(self, count: usize) -> u64 {
        let bytes = match self {
            Self::None => 4 * count,
            // Places as numbers, or as a bit for every place: whatever is shorter.
            Self::TopK(part) => {
                let kept = kept(part, count);
                let places = (4 * kept).min(count.div_ceil(8));
                (4 * kept + places).min(4 * count)
            }
            Self::RandomK(part) => (4 * kept(part, count) + 8).min(4 * count),
            Self::Sign => count.div_ceil(8) + 4,
            Self::EightBit => count + 4,
        };
        bytes as u64
    }
}

/// How many of `count` numbers a part is: at least one.
pub fn kept(part: f64, count: usize) -> usize {
    ((part * count as f64).round() as usize).clamp(count.min(1), count)
}

/// A random choice of places that can be asked place by place: those i for which offset + i x stride
/// (modulo the number of places, to which the stride has no common divisor) is below the number that
/// is chosen. Every place is chosen equally often.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// How many places there are.
    pub count: u64,
    /// How many are chosen.
    pub chosen: u64,
    /// Where it starts.
    pub offset: u64,
    /// From place to place.
    pub stride: u64,
}

impl Draw {
    /// A part of `count` places.
    pub fn new(part: f64, count: usize, draw: &[u64]) -> Self {
        let mut stream = Stream::new(0, "random part", draw);
        let chosen = kept(part, count) as u64;
        let offset = stream.below(count.max(1)) as u64;
        let stride = loop {
            let stride = stream.below(count.max(1)) as u64;
            if common_divisor(stride, count as u64) <= 1 {
                break stride;
            }
        };
        Self { count: count as u64, chosen, offset, stride }
    }

    /// Whether a place is chosen.
    pub fn has(&self, place: usize) -> bool {
        (self.offset + place as u64 * self.stride) % self.count < self.chosen
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
        let mut arrived = vector.to_vec();
        compression.apply(&mut arrived, &[draw]);
        let rest: Vec<f32> = vector.iter().zip(&arrived).map(|(a, b)| a - b).collect();
        squares(&rest) / squares(vector)
    }

    /// What CHOCO's theory asks of a compressor: less than all is lost, by a known part.
    #[test]
    fn what_is_lost_is_bounded() {
        let all = vector(1000, 0);
        assert_eq!(error(Compression::None, &all, 0), 0.0);
        assert!(error(Compression::TopK(0.1), &all, 0) < 0.9);
        assert!(error(Compression::EightBit, &all, 0) < 1e-4);
        // 1 - |x|_1^2 / (d |x|_2^2), to rounding.
        let one: f64 = all.iter().map(|x| f64::from(x.abs())).sum();
        let known = 1.0 - one * one / (1000.0 * squares(&all));
        assert!((error(Compression::Sign, &all, 0) - known).abs() < 1e-6);
        // 1 - k/d in the mean over draws.
        let mean: f64 = (0..2000).map(|draw| error(Compression::RandomK(0.1), &all, draw)).sum::<f64>() / 2000.0;
        assert!((mean - 0.9).abs() < 0.01, "{mean}");
    }

    #[test]
    fn a_part_has_just_so_many_numbers() {
        for count in [1, 2, 7, 64, 1000] {
            for part in [0.001, 0.1, 0.5, 1.0] {
                for compression in [Compression::TopK(part), Compression::RandomK(part)] {
                    let mut arrived = vec![1.0; count]; // all alike: ties everywhere
                    compression.apply(&mut arrived, &[5]);
                    let left = arrived.iter().filter(|x| **x != 0.0).count();
                    assert_eq!(left, kept(part, count), "{compression:?} of {count}");
                }
            }
        }
        let mut chosen = [0; 10];
        for draw in 0..10_000 {
            let draw = Draw::new(0.3, 10, &[draw]);
            (0..10).for_each(|place| chosen[place] += i32::from(draw.has(place)));
        }
        assert!(chosen.iter().all(|n| (2800..3200).contains(n)), "{chosen:?}");
    }

    #[test]
    fn a_lost_number_is_not_hidden() {
        for compression in [Compression::TopK(0.25), Compression::Sign, Compression::EightBit] {
            let mut arrived = [1.0, f32::NAN, 2.0, 3.0];
            compression.apply(&mut arrived, &[]);
            assert!(arrived.iter().any(|x| x.is_nan()), "{compression:?}");
        }
    }
}
