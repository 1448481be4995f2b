//! An array of numbers from a file: its shape and its elements.

use safetensors::tensor::{Dtype, TensorView};
use std::borrow::Cow;

/// An array in a file.
pub(super) struct Array<'a> {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    kind: Kind,
    /// Whether the first index changes fastest, as in Fortran.
    pub(super) is_fortran: bool,
    pub(super) is_big_endian: bool,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// The type of the elements: a letter as in NumPy, and the number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    /// A type that is not supported, by its name.
    Other(String),
}

impl<'a> Array<'a> {
    pub(super) fn new(name: String, shape: Vec<usize>, kind: Kind, bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { name, shape, kind, is_fortran: false, is_big_endian: false, bytes: bytes.into() }
    }

    pub(super) fn of_tensor(name: String, tensor: &TensorView<'a>) -> Self {
        let kind = match tensor.dtype() {
            Dtype::BOOL => Kind::Bool,
            Dtype::U8 => Kind::Unsigned(1),
            Dtype::U16 => Kind::Unsigned(2),
            Dtype::U32 => Kind::Unsigned(4),
            Dtype::U64 => Kind::Unsigned(8),
            Dtype::I8 => Kind::Signed(1),
            Dtype::I16 => Kind::Signed(2),
            Dtype::I32 => Kind::Signed(4),
            Dtype::I64 => Kind::Signed(8),
            Dtype::F32 => Kind::Float(4),
            Dtype::F64 => Kind::Float(8),
            other => Kind::Other(format!("{other:?}")),
        };
        Self::new(name, tensor.shape().to_vec(), kind, tensor.data())
    }

    /// The number of examples.
    pub(super) fn count(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Channels, height and width of the examples. The smaller one of the second and the last dimension has the channels,
    /// so that both orders are read. Vectors are images with one row.
    pub(super) fn image_shape(&self) -> Result<[usize; 3], String> {
        match self.shape[..] {
            [_, features] if features > 0 => Ok([1, 1, features]),
            [_, height, width] if height.min(width) > 0 => Ok([1, height, width]),
            [_, a, b, c] if a.min(b).min(c) > 0 => Ok(if self.has_channels_last() { [c, a, b] } else { [a, b, c] }),
            _ => Err(format!(
                "{} has the shape {:?}: write images as count x height x width, with channels before or after height \
                 and width if there are any, or vectors as count x features",
                self.name, self.shape
            )),
        }
    }

    fn has_channels_last(&self) -> bool {
        matches!(self.shape[..], [_, channels, _, last] if last < channels)
    }

    fn element_size(&self) -> Result<usize, String> {
        match &self.kind {
            Kind::Bool => Ok(1),
            Kind::Unsigned(size) | Kind::Signed(size) | Kind::Float(size) => Ok(*size),
            Kind::Other(name) => {
                Err(format!("{} has elements of the type {name}: write bytes, integers or 32-bit floats", self.name))
            }
        }
    }

    /// The elements, in the order in which the last index changes fastest.
    pub(super) fn values(&self) -> Result<impl Iterator<Item = f64> + '_, String> {
        let size = self.element_size()?;
        let count = self.shape.iter().try_fold(1usize, |product, &side| product.checked_mul(side));
        if count.and_then(|count| count.checked_mul(size)) != Some(self.bytes.len()) {
            let (bytes, shape) = (self.bytes.len(), &self.shape);
            return Err(format!("{} has {bytes} bytes, which its shape {shape:?} does not need", self.name));
        }
        let count = self.bytes.len() / size;
        Ok((0..count).map(move |index| {
            let place = if self.is_fortran { self.fortran_place(index) } else { index };
            self.element(&self.bytes[place * size..][..size])
        }))
    }

    /// Where an element is in an array of Fortran's order.
    fn fortran_place(&self, index: usize) -> usize {
        let (mut rest, mut place, mut stride) = (index, 0, self.bytes.len() / self.kind.size());
        for &side in self.shape.iter().rev() {
            stride /= side;
            place += rest % side * stride;
            rest /= side;
        }
        place
    }

    fn element(&self, bytes: &[u8]) -> f64 {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        if self.is_big_endian {
            word[..bytes.len()].reverse();
        }
        let bits = u64::from_le_bytes(word);
        let unused = 64 - 8 * bytes.len() as u32;
        match &self.kind {
            Kind::Bool => f64::from(u8::from(bits != 0)),
            Kind::Signed(_) => ((bits << unused) as i64 >> unused) as f64,
            Kind::Float(4) => f64::from(f32::from_bits(bits as u32)),
            Kind::Float(_) => f64::from_bits(bits),
            Kind::Unsigned(_) | Kind::Other(_) => bits as f64,
        }
    }

    /// What the elements of images are multiplied by to become bytes: 1 for whole numbers from 0 to 255, and 255 for
    /// floating-point numbers from 0 to 1.
    pub(super) fn pixel_scale(images: &[&Self]) -> Result<f64, String> {
        let (mut low, mut high, mut is_whole) = (f64::INFINITY, f64::NEG_INFINITY, true);
        for array in images {
            if array.kind == Kind::Unsigned(1) {
                continue;
            }
            for value in array.values()? {
                if !value.is_finite() {
                    return Err(format!("{} has values that are not finite", array.name));
                }
                (low, high, is_whole) = (low.min(value), high.max(value), is_whole && value.fract() == 0.0);
            }
        }
        let has_fractions = images.iter().any(|array| matches!(array.kind, Kind::Float(_) | Kind::Bool));
        match (low >= 0.0, high) {
            (true, ..=1.0) if has_fractions => Ok(255.0),
            (true, ..=255.0) if is_whole => Ok(1.0),
            _ if low > high => Ok(1.0),
            _ => Err(format!(
                "{} has values from {low:.4} to {high:.4}: pixels are stored as bytes, so write whole numbers from 0 to \
                 255, or numbers from 0 to 1",
                images[0].name
            )),
        }
    }

    /// The elements as bytes, image by image, channel by channel.
    pub(super) fn pixels(&self, scale: f64) -> Result<Vec<u8>, String> {
        let is_plain = self.kind == Kind::Unsigned(1) && !self.is_fortran;
        // Also checks the length.
        let values = self.values()?;
        let flat: Vec<u8> = match is_plain {
            true => self.bytes.to_vec(),
            false => values.map(|value| (scale * value).round() as u8).collect(),
        };
        if !self.has_channels_last() {
            return Ok(flat);
        }
        let [channels, height, width] = self.image_shape()?;
        let planes = |image: &[u8]| -> Vec<u8> {
            (0..channels).flat_map(|channel| image.iter().skip(channel).step_by(channels).copied()).collect()
        };
        Ok(flat.chunks_exact(channels * height * width).flat_map(planes).collect())
    }
}

impl Kind {
    /// A type as NumPy writes it, without the order of bytes: `u1`, `f4`, `b1`.
    pub(super) fn of_numpy(text: &str) -> Self {
        let other = || Self::Other(format!("`{text}`"));
        let size = text.get(1..).and_then(|size| size.parse().ok());
        match (text.chars().next(), size) {
            (Some('b'), Some(1)) => Self::Bool,
            (Some('u'), Some(size @ (1 | 2 | 4 | 8))) => Self::Unsigned(size),
            (Some('i'), Some(size @ (1 | 2 | 4 | 8))) => Self::Signed(size),
            (Some('f'), Some(size @ (4 | 8))) => Self::Float(size),
            _ => other(),
        }
    }

    /// The bytes of an element; 1 for types that are not supported.
    fn size(&self) -> usize {
        match self {
            Self::Unsigned(size) | Self::Signed(size) | Self::Float(size) => *size,
            Self::Bool | Self::Other(_) => 1,
        }
    }
}
