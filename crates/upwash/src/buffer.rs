//! Buffers for the values of a message: owned by this process, or in memory shared with other processes.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer that a transport provides, for example in memory shared with other processes.
pub trait SharedBuffer: Any + Send + Sync {
    /// The values.
    fn values(&self) -> &[f32];

    /// The values for writing. `None` if the buffer is read-only, as it is once it has been sent.
    fn values_mut(&mut self) -> Option<&mut [f32]>;
}

/// The values of a message.
///
/// ```
/// use upwash::transport::Buffer;
/// let numbers = Buffer::from(vec![1.0, 2.0]);
/// assert_eq!(numbers.len(), 2);
/// assert_eq!(numbers.into_vec(), [1.0, 2.0]);
/// ```
pub struct Buffer(Storage);

enum Storage {
    Owned(Vec<f32>),
    Shared(Box<dyn SharedBuffer>),
}

impl Buffer {
    /// Wraps a buffer that a transport provides.
    pub fn shared(buffer: impl SharedBuffer) -> Self {
        Self(Storage::Shared(Box::new(buffer)))
    }

    /// The buffer that a transport provided, if it is of type `L`.
    pub fn as_shared<L: SharedBuffer>(&self) -> Option<&L> {
        match &self.0 {
            Storage::Owned(_) => None,
            Storage::Shared(shared) => (&**shared as &dyn Any).downcast_ref(),
        }
    }

    /// Converts into a vector. Copies the values only if they are in a shared buffer.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Storage::Owned(values) => values,
            Storage::Shared(shared) => shared.values().to_vec(),
        }
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(values: Vec<f32>) -> Self {
        Self(Storage::Owned(values))
    }
}

impl Default for Buffer {
    fn default() -> Self {
        vec![].into()
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Storage::Owned(values) => values,
            Storage::Shared(shared) => shared.values(),
        }
    }
}

/// Copies the values first if they are in a read-only shared buffer.
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        if let Storage::Shared(shared) = &mut self.0
            && shared.values_mut().is_none()
        {
            self.0 = Storage::Owned(shared.values().to_vec());
        }
        match &mut self.0 {
            Storage::Owned(values) => values,
            Storage::Shared(shared) => shared.values_mut().unwrap_or_default(),
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}

/// A pool of reusable vectors. Allocating new memory costs as much as sending its contents.
///
/// ```
/// let pool = upwash::transport::Pool::new(2);
/// let mut page = pool.allocate(3);
/// page.copy_from_slice(&[1.0, 2.0, 3.0]);
/// drop(page);
/// assert_eq!(pool.allocate(3).to_vec(), [1.0, 2.0, 3.0]); // not cleared
/// assert_eq!(pool.allocate(2).to_vec(), [0.0, 0.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    spare: Arc<Mutex<Vec<Vec<f32>>>>,
    capacity: usize,
}

impl Pool {
    /// Creates a pool that keeps at most `capacity` unused vectors.
    pub fn new(capacity: usize) -> Self {
        Self { spare: Arc::default(), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an unused vector of this length from the pool, if there is one.
    pub fn spare(&self, length: usize) -> Option<Vec<f32>> {
        let mut spare = self.lock();
        let index = spare.iter().position(|vector| vector.len() == length)?;
        Some(spare.swap_remove(index))
    }

    /// Wraps `values` in a buffer that returns its memory to the pool when it is dropped.
    pub fn wrap(&self, values: Vec<f32>) -> Buffer {
        Buffer::shared(Pooled { values, pool: self.clone() })
    }

    /// Allocates a buffer of `length` values with unspecified contents.
    pub fn allocate(&self, length: usize) -> Buffer {
        self.wrap(self.spare(length).unwrap_or_else(|| vec![0.0; length]))
    }
}

struct Pooled {
    values: Vec<f32>,
    pool: Pool,
}

impl SharedBuffer for Pooled {
    fn values(&self) -> &[f32] {
        &self.values
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        Some(&mut self.values)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut spare = self.pool.lock();
        // Evict the oldest vector: the lengths in use may have changed.
        if spare.len() >= self.pool.capacity {
            spare.remove(0);
        }
        spare.push(std::mem::take(&mut self.values));
    }
}
