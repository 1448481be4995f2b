//! How activations lie in memory.

use crate::BLOCK;

/// The shape of a tensor of activations, without the number of images.
///
/// Pixels are stored with their channels side by side (NHWC). An image has a halo of zeros that it shares with its
/// neighbors: a row of zeros precedes its first row, and a pixel of zeros precedes each row. The pixel after the end of
/// a row is then the zero before the next row, and the row below an image is the zero row above the next image. A 3x3
/// convolution thus needs neither copies nor conditions at borders, as long as only interiors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The number of rows.
    pub height: usize,
    /// The number of pixels in a row.
    pub width: usize,
    /// The number of channels.
    pub channels: usize,
    /// The number of elements from one pixel to the next: the channels, rounded up to whole blocks in the output of a
    /// layer. Elements beyond the channels are 0.
    pub pitch: usize,
    /// The width of the halo: 1, or 0 for flat vectors.
    halo: usize,
}

impl Shape {
    /// The output of a layer that computes images.
    pub fn image(channels: usize, height: usize, width: usize) -> Self {
        Self { height, width, channels, pitch: channels.next_multiple_of(BLOCK), halo: 1 }
    }

    /// Images as they come from a data set, whose channels are not rounded up.
    pub fn input(channels: usize, height: usize, width: usize) -> Self {
        Self { pitch: channels, ..Self::image(channels, height, width) }
    }

    /// Flat vectors.
    pub fn flat(features: usize) -> Self {
        Self { halo: 0, ..Self::image(features, 1, 1) }
    }

    /// Whether these are flat vectors.
    pub fn is_flat(&self) -> bool {
        self.halo == 0
    }

    /// The number of features of an image, or of a flat vector.
    pub fn features(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// The number of elements from one row to the next.
    pub fn row_pitch(&self) -> usize {
        (self.width + self.halo) * self.pitch
    }

    /// The number of elements from one image to the next.
    pub fn image_pitch(&self) -> usize {
        (self.height + self.halo) * self.row_pitch()
    }

    /// The index of the first pixel of the first image.
    pub fn origin(&self) -> usize {
        self.halo * (self.row_pitch() + self.pitch)
    }

    /// The number of elements of a tensor of this many images.
    pub fn len(&self, images: usize) -> usize {
        images * self.image_pitch() + self.halo * (self.row_pitch() + self.pitch)
    }

    /// The start of every row of `images` images: `width` pixels follow each.
    pub fn rows(&self, images: usize) -> impl Iterator<Item = usize> + use<> {
        let (shape, height) = (*self, self.height);
        (0..images * height)
            .map(move |row| shape.origin() + row / height * shape.image_pitch() + row % height * shape.row_pitch())
    }

    /// The number of elements in the pixels of a row.
    pub fn row_len(&self) -> usize {
        self.width * self.pitch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halo_is_shared_by_neighbors() {
        let shape = Shape::image(16, 2, 3);
        assert_eq!((shape.row_pitch(), shape.image_pitch(), shape.origin()), (64, 192, 80));
        assert_eq!(shape.rows(2).collect::<Vec<_>>(), [80, 144, 272, 336]);
        // The pixel right of the last one and the row below it.
        assert_eq!(shape.len(2), 336 + 48 + 16 + 64);
        assert_eq!((Shape::flat(10).pitch, Shape::flat(10).len(4), Shape::flat(10).origin()), (16, 64, 0));
        assert_eq!(Shape::input(3, 8, 8).pitch, 3);
    }
}
