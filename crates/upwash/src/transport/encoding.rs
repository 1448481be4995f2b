//! Encodings of vectors on the wire: uncompressed, in half precision, or compressed. All consist of units of four
//! bytes, so that uncompressed vectors need not be copied.

use crate::compress::{Compression, Draw, kept};
use upwash_topology::random::Stream;

/// How a vector is encoded on the wire.
///
/// ```
/// use upwash::transport::Encoding;
/// let sent = Encoding::Bf16.encode(vec![1.0, -2.5, 3.0], &[]);
/// assert_eq!(sent.len(), 2); // two numbers in a unit
/// assert_eq!(Encoding::Bf16.decode(&sent, 3, &[]), Some(vec![1.0, -2.5, 3.0]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    /// Uncompressed.
    F32,
    /// Two bytes per number (bf16), rounded up or down at random, so that the mean is right. Rounded to the nearest, models
    /// would stay where they are if a step is shorter than half the distance of two numbers.
    Bf16,
    /// The compact form of a vector that has been [compressed](Compression::apply).
    Compressed(Compression),
}

impl Encoding {
    /// The number of units that encode a vector of `count` numbers.
    pub fn units(self, count: usize) -> usize {
        match self {
            Self::F32 | Self::Compressed(Compression::None) => count,
            Self::Bf16 => count.div_ceil(2),
            Self::Compressed(Compression::TopK(part)) => {
                let kept = kept(part, count);
                let indices = kept.min(count.div_ceil(32));
                (kept + indices).min(count)
            }
            Self::Compressed(Compression::RandomK(part)) => kept(part, count),
            Self::Compressed(Compression::Sign) => 1 + count.div_ceil(32),
            Self::Compressed(Compression::EightBit) => 1 + count.div_ceil(4),
        }
    }

    /// Encodes a vector. `draw` is what random choices of the compression depended on.
    pub fn encode(self, vector: Vec<f32>, draw: &[u64]) -> Vec<f32> {
        let count = vector.len();
        match self {
            Self::F32 | Self::Compressed(Compression::None) => vector,
            Self::Bf16 => {
                let mut random = Stream::new(0, "bf16", draw);
                let pair = |pair: &[f32]| {
                    let noise = random.below(1 << 32);
                    let low = u32::from(to_bf16(pair[0], noise as u16));
                    let high = pair.get(1).map_or(0, |&x| u32::from(to_bf16(x, (noise >> 16) as u16)));
                    f32::from_bits(low | high << 16)
                };
                vector.chunks(2).map(pair).collect()
            }
            Self::Compressed(Compression::TopK(part)) => encode_largest(vector, part),
            Self::Compressed(Compression::RandomK(part)) => {
                let draw = Draw::new(part, count, draw);
                let indices = (0..count).filter(|&index| draw.has(index));
                indices.map(|index| vector[index]).collect()
            }
            Self::Compressed(Compression::Sign) => {
                let magnitude = vector.first().map_or(0.0, |x| x.abs());
                let positive: Vec<bool> = vector.iter().map(|x| x.is_sign_positive()).collect();
                let mut units = vec![magnitude];
                units.extend(bits(&positive));
                units
            }
            Self::Compressed(Compression::EightBit) => encode_in_bytes(&vector),
        }
    }

    /// Decodes a vector of `count` numbers. Returns `None` if the units are invalid.
    pub fn decode(self, units: &[f32], count: usize, draw: &[u64]) -> Option<Vec<f32>> {
        if units.len() != self.units(count) {
            return None;
        }
        Some(match self {
            Self::F32 | Self::Compressed(Compression::None) => units.to_vec(),
            Self::Bf16 => {
                let unit = |unit: &f32| {
                    let bits = unit.to_bits();
                    [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
                };
                let mut vector: Vec<f32> = units.iter().flat_map(unit).collect();
                vector.truncate(count);
                vector
            }
            Self::Compressed(Compression::TopK(part)) => {
                let kept = kept(part, count);
                if units.len() == count {
                    return Some(units.to_vec());
                }
                let (values, indices) = units.split_at(kept);
                let mut vector = vec![0.0; count];
                if kept <= count.div_ceil(32) {
                    for (&value, index) in values.iter().zip(indices) {
                        *vector.get_mut(index.to_bits() as usize)? = value;
                    }
                } else {
                    let mut values = values.iter();
                    for (index, x) in vector.iter_mut().enumerate() {
                        if has_bit(indices, index) {
                            *x = *values.next()?;
                        }
                    }
                }
                vector
            }
            Self::Compressed(Compression::RandomK(part)) => {
                let draw = Draw::new(part, count, draw);
                let mut values = units.iter();
                let mut vector = vec![0.0; count];
                for (index, x) in vector.iter_mut().enumerate() {
                    if draw.has(index) {
                        *x = *values.next()?;
                    }
                }
                vector
            }
            Self::Compressed(Compression::Sign) => {
                let (magnitude, signs) = units.split_first()?;
                let sign = |index| if has_bit(signs, index) { *magnitude } else { -magnitude };
                (0..count).map(sign).collect()
            }
            Self::Compressed(Compression::EightBit) => {
                let (scale, bytes) = units.split_first()?;
                let number = |index: usize| {
                    let byte = bytes[index / 4].to_bits() >> (8 * (index % 4));
                    f32::from(byte as u8 as i8) * scale
                };
                (0..count).map(number).collect()
            }
        })
    }
}

/// The numbers that were kept, and after them their indices or a bit for each number, whichever is shorter. The vector itself
/// if that is no longer.
fn encode_largest(vector: Vec<f32>, part: f64) -> Vec<f32> {
    let count = vector.len();
    let kept = kept(part, count);
    if kept + kept.min(count.div_ceil(32)) >= count {
        return vector;
    }
    // Fewer than `kept` numbers may be nonzero. Zeros at the lowest indices fill up the rest.
    let mut chosen: Vec<bool> = vector.iter().map(|&x| x.to_bits() != 0).collect();
    let mut missing = kept.saturating_sub(chosen.iter().filter(|is_chosen| **is_chosen).count());
    for is_chosen in &mut chosen {
        if missing > 0 && !*is_chosen {
            *is_chosen = true;
            missing -= 1;
        }
    }
    let indices = (0..count).filter(|&index| chosen[index]);
    let mut units: Vec<f32> = indices.clone().map(|index| vector[index]).collect();
    if kept <= count.div_ceil(32) {
        units.extend(indices.map(|index| f32::from_bits(index as u32)));
    } else {
        units.extend(bits(&chosen));
    }
    units
}

/// The scale, and after it four numbers in each unit.
fn encode_in_bytes(vector: &[f32]) -> Vec<f32> {
    let largest = vector.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
    // The largest number is 127 times the scale. Because of rounding, only trying tells the exact scale.
    let estimate = f32::from_bits(largest) / 127.0;
    let exact = |scale: &f32| {
        let steps = |x: &f32| (x / scale).round_ties_even() * scale == *x;
        vector.iter().all(steps)
    };
    let candidates = [estimate, estimate.next_down(), estimate.next_up()];
    let scale = candidates.into_iter().find(exact).unwrap_or(estimate);
    let byte = |x: f32| match scale == 0.0 {
        true => 0,
        false => u32::from((x / scale).round_ties_even() as i8 as u8),
    };
    let four = |four: &[f32]| {
        let all = four.iter().enumerate();
        let bytes = all.map(|(index, &x)| byte(x) << (8 * index));
        f32::from_bits(bytes.fold(0, |a, b| a | b))
    };
    let mut units = vec![scale];
    units.extend(vector.chunks(4).map(four));
    units
}

/// bf16: the upper half of the bits, rounded away from zero if the sum of the lower half and `noise` is more than 16 bits
/// hold. NaN stays NaN, and what would become infinite is rounded toward zero.
fn to_bf16(x: f32, noise: u16) -> u16 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let bits = x.to_bits();
    let rounded = f32::from_bits((bits + u32::from(noise)) & 0xffff_0000);
    let rounded = if rounded.is_finite() { rounded.to_bits() } else { bits };
    (rounded >> 16) as u16
}

fn bits(flags: &[bool]) -> impl Iterator<Item = f32> + '_ {
    flags.chunks(32).map(|flags| {
        let set = flags.iter().enumerate();
        let bits = set.map(|(index, &is)| u32::from(is) << index);
        f32::from_bits(bits.fold(0, |a, b| a | b))
    })
}

fn has_bit(units: &[f32], index: usize) -> bool {
    units[index / 32].to_bits() >> (index % 32) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use upwash_topology::random::Stream;

    fn vector(count: usize) -> Vec<f32> {
        let mut stream = Stream::new(3, "test", &[count as u64]);
        (0..count).map(|_| stream.normal() as f32).collect()
    }

    /// The decoded vector is the compressed one, bit by bit.
    #[test]
    fn compressed_vectors_are_decoded_exactly() {
        for count in [1, 2, 3, 31, 32, 33, 64, 1000] {
            for compression in [
                Compression::None,
                Compression::TopK(0.01),
                Compression::TopK(0.3),
                Compression::TopK(0.99),
                Compression::RandomK(0.1),
                Compression::Sign,
                Compression::EightBit,
            ] {
                let mut compressed = vector(count);
                if count > 2 {
                    compressed[1] = 0.0;
                }
                compression.apply(&mut compressed, &[7, 9]);
                let encoding = Encoding::Compressed(compression);
                let sent = encoding.encode(compressed.clone(), &[7, 9]);
                assert_eq!(sent.len(), encoding.units(count), "{compression:?} of {count}");
                // The size matches the one that simulated costs assume, up to 8 bytes.
                let counted = compression.bytes(count);
                let bytes = 4 * sent.len() as u64;
                assert!(bytes <= counted + 8 && counted <= bytes + 8, "{compression:?}");
                let arrived = encoding.decode(&sent, count, &[7, 9]).unwrap();
                assert_eq!(arrived, compressed, "{compression:?} of {count}");
                assert_eq!(encoding.decode(&sent[..sent.len() - 1], count, &[7, 9]), None);
            }
        }
    }

    #[test]
    fn bf16_rounds_without_bias() {
        let all = vector(101);
        let sent = Encoding::Bf16.encode(all.clone(), &[]);
        let arrived = Encoding::Bf16.decode(&sent, 101, &[]).unwrap();
        for (a, b) in arrived.iter().zip(&all) {
            assert!((a - b).abs() <= b.abs() / 128.0, "{a} {b}");
        }
        let odd = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN, 0.0];
        let sent = Encoding::Bf16.encode(odd.to_vec(), &[]);
        let arrived = Encoding::Bf16.decode(&sent, 5, &[]).unwrap();
        assert!(arrived[0].is_nan() && arrived[1].is_infinite() && arrived[2..].iter().all(|x| x.is_finite()));
        // A quarter of the way between two numbers.
        for value in [1.0 + 1.0 / 512.0, -1.0 - 1.0 / 512.0] {
            let sent = |draw: u64| Encoding::Bf16.encode(vec![value; 1001], &[draw]);
            let arrived = Encoding::Bf16.decode(&sent(1), 1001, &[1]).unwrap();
            let mean = arrived.iter().sum::<f32>() / 1001.0;
            assert!((mean - value).abs() < 0.0004, "{mean} instead of {value}");
            assert!(sent(1) == sent(1) && sent(1) != sent(2), "it depends on the draw alone");
        }
    }

    #[test]
    fn invalid_indices_are_rejected() {
        let encoding = Encoding::Compressed(Compression::TopK(0.01));
        let mut sent = encoding.encode(vector(1000), &[]);
        sent.truncate(encoding.units(1000));
        let last = sent.len() - 1;
        sent[last] = f32::from_bits(1000);
        assert_eq!(encoding.decode(&sent, 1000, &[]), None);
    }
}
