//! The numbers of a message: this process's own, or where several processes see them.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffer that a transport has lent: in memory that other processes see as well, say.
pub trait SharedBuffer: Any + Send + Sync {
    /// The numbers.
    fn values(&self) -> &[f32];

    /// The numbers, for who fills them in before they are sent; none where they have been.
    fn values_mut(&mut self) -> Option<&mut [f32]>;
}

/// The numbers of a message.
///
/// ```
/// use upwash::transport::Buffer;
/// let numbers = Buffer::from(vec![1.0, 2.0]);
/// assert_eq!(numbers.len(), 2);
/// assert_eq!(numbers.into_vec(), [1.0, 2.0]);
/// ```
pub struct Buffer(Kept);

enum Kept {
    Own(Vec<f32>),
    SharedBuffer(Box<dyn SharedBuffer>),
}

impl Buffer {
    /// What a transport lends.
    pub fn lent(numbers: impl SharedBuffer) -> Self {
        Self(Kept::SharedBuffer(Box::new(numbers)))
    }

    /// What was lent, if it is of this kind.
    pub fn as_lent<L: SharedBuffer>(&self) -> Option<&L> {
        match &self.0 {
            Kept::Own(_) => None,
            Kept::SharedBuffer(lent) => (&**lent as &dyn Any).downcast_ref(),
        }
    }

    /// As a vector of this process's own; copied only if it is not one.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Kept::Own(numbers) => numbers,
            Kept::SharedBuffer(lent) => lent.values().to_vec(),
        }
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(numbers: Vec<f32>) -> Self {
        Self(Kept::Own(numbers))
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
            Kept::Own(numbers) => numbers,
            Kept::SharedBuffer(lent) => lent.values(),
        }
    }
}

/// What was lent and sent already is copied first.
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        if let Kept::SharedBuffer(lent) = &mut self.0
            && lent.values_mut().is_none()
        {
            self.0 = Kept::Own(lent.values().to_vec());
        }
        match &mut self.0 {
            Kept::Own(numbers) => numbers,
            Kept::SharedBuffer(lent) => lent.values_mut().unwrap_or_default(),
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

/// Vectors that are used again: new memory costs as much as sending what is in it.
///
/// ```
/// let pool = upwash::transport::Pool::new(2);
/// let mut page = pool.allocate(3);
/// page.copy_from_slice(&[1.0, 2.0, 3.0]);
/// drop(page);
/// assert_eq!(pool.allocate(3).to_vec(), [1.0, 2.0, 3.0]); // as it was left
/// assert_eq!(pool.allocate(2).to_vec(), [0.0, 0.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    spare: Arc<Mutex<Vec<Vec<f32>>>>,
    most: usize,
}

impl Pool {
    /// Keeps at most so many that are not in use.
    pub fn new(most: usize) -> Self {
        Self { spare: Arc::default(), most }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of this length that was used before, if there is one.
    pub fn spare(&self, length: usize) -> Option<Vec<f32>> {
        let mut spare = self.lock();
        let place = spare.iter().position(|page| page.len() == length)?;
        Some(spare.swap_remove(place))
    }

    /// These numbers; when nobody needs them any more, their memory is used again.
    pub fn lend(&self, numbers: Vec<f32>) -> Buffer {
        Buffer::lent(Pooled { numbers, pool: self.clone() })
    }

    /// Room for so many numbers, whatever is in it.
    pub fn allocate(&self, length: usize) -> Buffer {
        self.lend(self.spare(length).unwrap_or_else(|| vec![0.0; length]))
    }
}

struct Pooled {
    numbers: Vec<f32>,
    pool: Pool,
}

impl SharedBuffer for Pooled {
    fn values(&self) -> &[f32] {
        &self.numbers
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        Some(&mut self.numbers)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut spare = self.pool.lock();
        // What is longest unused goes: lengths may have changed.
        if spare.len() >= self.pool.most {
            spare.remove(0);
        }
        spare.push(std::mem::take(&mut self.numbers));
    }
}
