//! Buffers that start at a cache line.

use std::ops::{Deref, DerefMut};

/// The size of a cache line, and of the largest vector, in bytes.
const LINE: usize = 64;

/// A buffer whose first element is at the start of a cache line, so that no vector of a block crosses one.
#[derive(Debug, Default)]
pub(crate) struct Buffer<R> {
    data: Vec<R>,
    start: usize,
    len: usize,
    /// How many elements at the front are out of sight: those of images that are not being computed.
    hidden: usize,
}

impl<R: Copy + Default> Buffer<R> {
    /// A buffer of zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let data = vec![R::default(); len + LINE / size_of::<R>()];
        let start = data.as_ptr().align_offset(LINE);
        Self { start, len, data, hidden: 0 }
    }

    /// The first `len` elements, with what was in them. The buffer grows if it is too short.
    pub(crate) fn first(&mut self, len: usize) -> &mut [R] {
        if self.len < len {
            *self = Self::zeros(len);
        }
        &mut self[..len]
    }

    /// Hides this many elements at the front, instead of those that were hidden before.
    pub(crate) fn hide(&mut self, hidden: usize) {
        self.hidden = hidden;
    }
}

impl<R> Deref for Buffer<R> {
    type Target = [R];

    fn deref(&self) -> &[R] {
        &self.data[self.start..][self.hidden..self.len]
    }
}

impl<R> DerefMut for Buffer<R> {
    fn deref_mut(&mut self) -> &mut [R] {
        &mut self.data[self.start..][self.hidden..self.len]
    }
}
