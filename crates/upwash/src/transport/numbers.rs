//! The numbers of a letter: this process's own, or where several processes see them.

use std::any::Any;
use std::ops::{Deref, DerefMut};

/// Numbers that a transport has lent: in memory that other processes see as well, say.
pub trait Lent: Any + Send + Sync {
    /// The numbers.
    fn numbers(&self) -> &[f32];

    /// The numbers, for who fills them in before they are sent; none where they have been.
    fn numbers_mut(&mut self) -> Option<&mut [f32]>;
}

/// The numbers of a letter.
///
/// ```
/// use upwash::transport::Numbers;
/// let numbers = Numbers::from(vec![1.0, 2.0]);
/// assert_eq!(numbers.len(), 2);
/// assert_eq!(numbers.into_vec(), [1.0, 2.0]);
/// ```
pub struct Numbers(Kept);

enum Kept {
    Own(Vec<f32>),
    Lent(Box<dyn Lent>),
}

impl Numbers {
    /// What a transport lends.
    pub fn lent(numbers: impl Lent) -> Self {
        Self(Kept::Lent(Box::new(numbers)))
    }

    /// What was lent, if it is of this kind.
    pub fn as_lent<L: Lent>(&self) -> Option<&L> {
        match &self.0 {
            Kept::Own(_) => None,
            Kept::Lent(lent) => (&**lent as &dyn Any).downcast_ref(),
        }
    }

    /// As a vector of this process's own; copied only if it is not one.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Kept::Own(numbers) => numbers,
            Kept::Lent(lent) => lent.numbers().to_vec(),
        }
    }
}

impl From<Vec<f32>> for Numbers {
    fn from(numbers: Vec<f32>) -> Self {
        Self(Kept::Own(numbers))
    }
}

impl Default for Numbers {
    fn default() -> Self {
        vec![].into()
    }
}

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Kept::Own(numbers) => numbers,
            Kept::Lent(lent) => lent.numbers(),
        }
    }
}

/// What was lent and sent already is copied first.
impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [f32] {
        if let Kept::Lent(lent) = &mut self.0
            && lent.numbers_mut().is_none()
        {
            self.0 = Kept::Own(lent.numbers().to_vec());
        }
        match &mut self.0 {
            Kept::Own(numbers) => numbers,
            Kept::Lent(lent) => lent.numbers_mut().unwrap_or_default(),
        }
    }
}

impl Clone for Numbers {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl PartialEq for Numbers {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}
