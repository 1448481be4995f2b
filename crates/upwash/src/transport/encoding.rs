//! Vectors as they travel: whole, in half precision, or compressed. Everything is in units of four
//! bytes, so that whole vectors need not be copied.

use crate::compress::{Compression, Draw, kept};

/// How a vector travels.
///
/// ```
/// use upwash::transport::Encoding;
/// let sent = Encoding::Bf16.encode(vec![1.0, -2.5, 3.0], &[]);
/// assert_eq!(sent.len(), 2); // two numbers in a unit
/// assert_eq!(Encoding::Bf16.decode(&sent, 3, &[]), Some(vec![1.0, -2.5, 3.0]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    /// As it is.
    F32,
    /// Buffer of two bytes (bf16), rounded to the nearest.
    Bf16,
    /// A vector that has been [compressed](Compression::apply): what is left of it.
    Compressed(Compression),
}

impl Encoding {
    /// How many units a vector of `count` numbers becomes.
    pub fn units(self, count: usize) -> usize {
        match self {
            Self::F32 | Self::Compressed(Compression::None) => count,
            Self::Bf16 => count.div_ceil(2),
            Self::Compressed(Compression::TopK(part)) => {
                let kept = kept(part, count);
                let places = kept.min(count.div_ceil(32));
                (kept + places).min(count)
            }
            Self::Compressed(Compression::RandomK(part)) => kept(part, count),
            Self::Compressed(Compression::Sign) => 1 + count.div_ceil(32),
            Self::Compressed(Compression::EightBit) => 1 + count.div_ceil(4),
        }
    }

    /// A vector as it travels. `draw` is what a random choice depended on.
    pub fn encode(self, vector: Vec<f32>, draw: &[u64]) -> Vec<f32> {
        let count = vector.len();
        match self {
            Self::F32 | Self::Compressed(Compression::None) => vector,
            Self::Bf16 => {
                let pair = |pair: &[f32]| {
                    let low = u32::from(half(pair[0]));
                    let high = pair.get(1).map_or(0, |&x| u32::from(half(x)));
                    f32::from_bits(low | high << 16)
                };
                vector.chunks(2).map(pair).collect()
            }
            Self::Compressed(Compression::TopK(part)) => {
                let kept = kept(part, count);
                if kept + kept.min(count.div_ceil(32)) >= count {
                    return vector;
                }
                // What is left may be fewer, where some of the largest are 0: those of the lowest
                // places fill it up.
                let mut chosen: Vec<bool> = vector.iter().map(|&x| x.to_bits() != 0).collect();
                let mut more = kept.saturating_sub(chosen.iter().filter(|is| **is).count());
                for place in &mut chosen {
                    if more > 0 && !*place {
                        *place = true;
                        more -= 1;
                    }
                }
                let places = (0..count).filter(|&place| chosen[place]);
                let mut units: Vec<f32> = places.clone().map(|place| vector[place]).collect();
                if kept <= count.div_ceil(32) {
                    units.extend(places.map(|place| f32::from_bits(place as u32)));
                } else {
                    units.extend(bits(&chosen));
                }
                units
            }
            Self::Compressed(Compression::RandomK(part)) => {
                let draw = Draw::new(part, count, draw);
                let places = (0..count).filter(|&place| draw.has(place));
                places.map(|place| vector[place]).collect()
            }
            Self::Compressed(Compression::Sign) => {
                let size = vector.first().map_or(0.0, |x| x.abs());
                let positive: Vec<bool> = vector.iter().map(|x| x.is_sign_positive()).collect();
                let mut units = vec![size];
                units.extend(bits(&positive));
                units
            }
            Self::Compressed(Compression::EightBit) => {
                let largest = vector.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
                // The largest is 127 steps of some size: rounding hides which of a few it was.
                let near = f32::from_bits(largest) / 127.0;
                let exact = |scale: &f32| {
                    let steps = |x: &f32| (x / scale).round_ties_even() * scale == *x;
                    vector.iter().all(steps)
                };
                let all = [near, near.next_down(), near.next_up()];
                let scale = all.into_iter().find(exact).unwrap_or(near);
                let byte = |x: f32| match scale == 0.0 {
                    true => 0,
                    false => u32::from((x / scale).round_ties_even() as i8 as u8),
                };
                let four = |four: &[f32]| {
                    let all = four.iter().enumerate();
                    let bytes = all.map(|(place, &x)| byte(x) << (8 * place));
                    f32::from_bits(bytes.fold(0, |a, b| a | b))
                };
                let mut units = vec![scale];
                units.extend(vector.chunks(4).map(four));
                units
            }
        }
    }

    /// A vector of `count` numbers out of what travelled; none if that cannot be one.
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
                let (values, places) = units.split_at(kept);
                let mut vector = vec![0.0; count];
                if kept <= count.div_ceil(32) {
                    for (&value, place) in values.iter().zip(places) {
                        *vector.get_mut(place.to_bits() as usize)? = value;
                    }
                } else {
                    let mut values = values.iter();
                    for (place, x) in vector.iter_mut().enumerate() {
                        if has_bit(places, place) {
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
                for (place, x) in vector.iter_mut().enumerate() {
                    if draw.has(place) {
                        *x = *values.next()?;
                    }
                }
                vector
            }
            Self::Compressed(Compression::Sign) => {
                let (size, signs) = units.split_first()?;
                let sign = |place| if has_bit(signs, place) { *size } else { -size };
                (0..count).map(sign).collect()
            }
            Self::Compressed(Compression::EightBit) => {
                let (scale, bytes) = units.split_first()?;
                let number = |place: usize| {
                    let byte = bytes[place / 4].to_bits() >> (8 * (place % 4));
                    f32::from(byte as u8 as i8) * scale
                };
                (0..count).map(number).collect()
            }
        })
    }
}

/// bf16: the upper half, rounded to the nearest, ties to even; what is no number stays none.
fn half(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn bits(flags: &[bool]) -> impl Iterator<Item = f32> + '_ {
    flags.chunks(32).map(|flags| {
        let set = flags.iter().enumerate();
        let bits = set.map(|(place, &is)| u32::from(is) << place);
        f32::from_bits(bits.fold(0, |a, b| a | b))
    })
}

fn has_bit(units: &[f32], place: usize) -> bool {
    units[place / 32].to_bits() >> (place % 32) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use upwash_topology::random::Stream;

    fn vector(count: usize) -> Vec<f32> {
        let mut stream = Stream::new(3, "test", &[count as u64]);
        (0..count).map(|_| stream.normal() as f32).collect()
    }

    /// What arrives is what the compressor left, to the bit.
    #[test]
    fn what_is_compressed_arrives_as_it_is() {
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
                let mut left = vector(count);
                if count > 2 {
                    left[1] = 0.0;
                }
                compression.apply(&mut left, &[7, 9]);
                let encoding = Encoding::Compressed(compression);
                let sent = encoding.encode(left.clone(), &[7, 9]);
                assert_eq!(sent.len(), encoding.units(count), "{compression:?} of {count}");
                // As it is counted where nothing travels, to the last unit.
                let counted = compression.bytes(count);
                let bytes = 4 * sent.len() as u64;
                assert!(bytes <= counted + 8 && counted <= bytes + 8, "{compression:?}");
                let arrived = encoding.decode(&sent, count, &[7, 9]).unwrap();
                assert_eq!(arrived, left, "{compression:?} of {count}");
                assert_eq!(encoding.decode(&sent[..sent.len() - 1], count, &[7, 9]), None);
            }
        }
    }

    #[test]
    fn halves_are_rounded_to_the_nearest() {
        let all = vector(101);
        let sent = Encoding::Bf16.encode(all.clone(), &[]);
        let arrived = Encoding::Bf16.decode(&sent, 101, &[]).unwrap();
        for (a, b) in arrived.iter().zip(&all) {
            assert!((a - b).abs() <= b.abs() / 256.0, "{a} {b}");
        }
        // 1 + 2^-8 is half way between two: the even one. What is no number stays none.
        let odd = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::NAN, f32::INFINITY];
        let sent = Encoding::Bf16.encode(odd.to_vec(), &[]);
        let arrived = Encoding::Bf16.decode(&sent, 4, &[]).unwrap();
        assert_eq!(arrived[..2], [1.0, 1.0 + 4.0 / 256.0]);
        assert!(arrived[2].is_nan() && arrived[3].is_infinite());
    }

    #[test]
    fn places_that_are_none_are_refused() {
        let encoding = Encoding::Compressed(Compression::TopK(0.01));
        let mut sent = encoding.encode(vector(1000), &[]);
        sent.truncate(encoding.units(1000));
        let last = sent.len() - 1;
        sent[last] = f32::from_bits(1000);
        assert_eq!(encoding.decode(&sent, 1000, &[]), None);
    }
}
