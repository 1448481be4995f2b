//! Buffer where all ranks of a machine see them: a message to a rank on the same machine then says only
//! where its numbers are, and these are read where they lie.
//!
//! A page is an anonymous file (memfd) in memory, which ranks of the same machine open by way of
//! /proc/PID/fd: it has no name that could be left behind, and is gone with the last who has it. In
//! front of the numbers is how many still read them; when nobody does, the page is written anew.

use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use upwash::transport::{Buffer, SharedBuffer};

/// Bytes before the numbers.
const FRONT: usize = 4096;
/// A rank has at most so many pages for messages of one length: one is written while neighbors read
/// another, and a slow one may still be at a third.
const SPARE: usize = 4;
/// Shorter messages go with MPI, which is as fast for them.
const SHORT: usize = 4096;

/// Where a page is, as others need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) process: u32,
    pub(crate) file: u32,
}

impl Address {
    /// Bytes of an address.
    pub(crate) const LENGTH: usize = 8;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let (process, file) = (u64::from(self.process), u64::from(self.file));
        (process << 32 | file).to_le_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let both = u64::from_le_bytes(bytes);
        Self { process: (both >> 32) as u32, file: both as u32 }
    }
}

/// A page as it lies in this process's memory.
struct Mapping {
    place: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory. Its count is atomic, its numbers are written only by who made it, and only while
// nobody reads them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, numbers: usize) -> rustix::io::Result<Self> {
        let bytes = FRONT + 4 * numbers;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place that the system chooses.
        let place = unsafe {
            let any = std::ptr::null_mut();
            mmap(any, bytes, access, MapFlags::SHARED, file, 0)?
        };
        let place = NonNull::new(place.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { place, bytes })
    }

    /// How many still read it.
    fn readers(&self) -> &AtomicU32 {
        // SAFETY: the front of the mapping, which is aligned to a page and lives as long as this.
        unsafe { AtomicU32::from_ptr(self.place.as_ptr().cast()) }
    }

    fn first(&self) -> *mut f32 {
        // SAFETY: every mapping has a front.
        unsafe { self.place.as_ptr().add(FRONT).cast() }
    }

    fn values(&self) -> &[f32] {
        // SAFETY: so many are there, and while they are read nobody writes them: see `SharedMemory::page`.
        unsafe { std::slice::from_raw_parts(self.first(), (self.bytes - FRONT) / 4) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody has a reference to it any more.
        let _ = unsafe { munmap(self.place.as_ptr().cast(), self.bytes) };
    }
}

/// A page of this rank.
pub(crate) struct OwnRegion {
    mapping: Mapping,
    file: OwnedFd,
}

impl OwnRegion {
    fn new(numbers: usize) -> rustix::io::Result<Self> {
        let file = memfd_create("upwash", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (FRONT + 4 * numbers) as u64)?;
        let mapping = Mapping::new(&file, numbers)?;
        Ok(Self { mapping, file })
    }

    fn address(&self) -> Address {
        Address { process: std::process::id(), file: self.file.as_raw_fd().unsigned_abs() }
    }
}

/// A page that is written, or on its way: the pool has another handle of it.
pub(crate) struct SharedRegion(Arc<OwnRegion>);

impl SharedRegion {
    pub(crate) fn address(&self) -> Address {
        self.0.address()
    }

    /// So many will read it: said before they are told of it.
    pub(crate) fn lend(&self, readers: u32) {
        let count = self.0.mapping.readers();
        count.fetch_add(readers, Ordering::AcqRel);
    }
}

impl SharedBuffer for SharedRegion {
    fn values(&self) -> &[f32] {
        self.0.mapping.values()
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        let mapping = &self.0.mapping;
        if mapping.readers().load(Ordering::Acquire) != 0 {
            return None;
        }
        let count = (mapping.bytes - FRONT) / 4;
        // SAFETY: a region is the only one of its page, and nobody has been told of it yet.
        Some(unsafe { std::slice::from_raw_parts_mut(mapping.first(), count) })
    }
}

/// A page of another rank, which this one reads.
struct Read(Arc<Mapping>);

impl SharedBuffer for Read {
    fn values(&self) -> &[f32] {
        self.0.values()
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        None
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        self.0.readers().fetch_sub(1, Ordering::AcqRel);
    }
}

/// The pages of this rank.
#[derive(Default)]
pub(crate) struct SharedMemory {
    own: Vec<Arc<OwnRegion>>,
}

impl SharedMemory {
    /// Room for so many numbers: a page that nobody reads, or a vector where there is none.
    pub(crate) fn allocate(&mut self, numbers: usize) -> Buffer {
        let plain = || Buffer::from(vec![0.0; numbers]);
        if numbers < SHORT {
            return plain();
        }
        let fits = |own: &&Arc<OwnRegion>| own.mapping.bytes == FRONT + 4 * numbers;
        let is_free = |own: &&Arc<OwnRegion>| {
            let readers = own.mapping.readers().load(Ordering::Acquire);
            let free = readers == 0 && Arc::strong_count(own) == 1;
            // Whoever gave it back has read it before we write it.
            fence(Ordering::Acquire);
            free
        };
        let fitting = self.own.iter().filter(fits);
        if let Some(own) = fitting.clone().find(is_free) {
            return Buffer::lent(SharedRegion(Arc::clone(own)));
        }
        if fitting.count() >= SPARE {
            return plain();
        }
        match OwnRegion::new(numbers) {
            Ok(own) => {
                let own = Arc::new(own);
                self.own.push(Arc::clone(&own));
                Buffer::lent(SharedRegion(own))
            }
            Err(_) => plain(),
        }
    }
}

/// SharedMemory of other ranks, as they lie in this process's memory.
#[derive(Default)]
pub(crate) struct RemoteRegion(HashMap<Address, Arc<Mapping>>);

impl RemoteRegion {
    /// The numbers of a page of another rank, which counts this one among its readers.
    pub(crate) fn read(&mut self, address: Address, numbers: usize) -> Result<Buffer, String> {
        let mapping = match self.0.get(&address) {
            Some(mapping) if mapping.bytes == FRONT + 4 * numbers => Arc::clone(mapping),
            _ => {
                let mapping = Arc::new(map(address, numbers)?);
                self.0.insert(address, Arc::clone(&mapping));
                mapping
            }
        };
        Ok(Buffer::lent(Read(mapping)))
    }
}

fn map(address: Address, numbers: usize) -> Result<Mapping, String> {
    let Address { process, file } = address;
    let path = format!("/proc/{process}/fd/{file}");
    let file = open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let length = |file: &OwnedFd| rustix::fs::fstat(file).map(|found| found.st_size);
    let mapping = file.and_then(|file| match length(&file)? as usize {
        found if found == FRONT + 4 * numbers => Mapping::new(file, numbers),
        _ => Err(rustix::io::Errno::INVAL),
    });
    mapping.map_err(|error| format!("{path}: {error}"))
}

/// A page to try with, whether the ranks of this machine can read each other's.
pub(crate) struct Probe(Option<OwnRegion>);

/// What is in it.
const TRIAL: [f32; 2] = [0.577, 1.618];

impl Probe {
    pub(crate) fn new() -> Self {
        let own = OwnRegion::new(TRIAL.len()).ok();
        if let Some(own) = &own {
            // SAFETY: nobody knows of it yet.
            unsafe { std::ptr::copy(TRIAL.as_ptr(), own.mapping.first(), TRIAL.len()) };
        }
        Self(own)
    }

    pub(crate) fn address(&self) -> Option<Address> {
        self.0.as_ref().map(OwnRegion::address)
    }

    /// Whether another rank's can be read here.
    pub(crate) fn is_readable(address: Address) -> bool {
        map(address, TRIAL.len()).is_ok_and(|mapping| mapping.values() == TRIAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is read, and a page is written anew only when nobody reads it.
    #[test]
    fn pages_are_lent_and_come_back() {
        let (mut pages, mut known) = (SharedMemory::default(), RemoteRegion::default());
        let count = 2 * SHORT;
        let mut first = pages.allocate(count);
        first.fill(1.0);
        let region: &SharedRegion = first.as_lent().unwrap();
        let address = region.address();
        assert_eq!(Address::from_bytes(address.to_bytes()), address);
        region.lend(2);
        let one = known.read(address, count).unwrap();
        let two = known.read(address, count).unwrap();
        assert!(one.iter().chain(&*two).all(|&x| x == 1.0));
        drop(first);
        // Someone still reads it: another.
        let mut second = pages.allocate(count);
        second.fill(2.0);
        let other = second.as_lent::<SharedRegion>().unwrap().address();
        assert_ne!(other, address);
        assert!(one.iter().all(|&x| x == 1.0));
        drop((one, two));
        assert_eq!(pages.allocate(count).as_lent::<SharedRegion>().unwrap().address(), address);
        // Who writes into what it reads writes into a copy.
        second.as_lent::<SharedRegion>().unwrap().lend(1);
        let mut heard = known.read(other, count).unwrap();
        heard[0] = 7.0;
        assert_eq!((second[0], heard[0]), (2.0, 7.0));
        // Neither a length that is not its own, nor a file that there is not.
        assert!(known.read(address, count + 1).is_err());
        let nowhere = Address { process: address.process, file: 1 << 20 };
        assert!(known.read(nowhere, count).is_err());
        // The pool is bounded, and short messages need none.
        let held: Vec<Buffer> = (0..9).map(|_| pages.allocate(count)).collect();
        let lent = held.iter().filter(|n| n.as_lent::<SharedRegion>().is_some());
        assert!(lent.count() < SPARE);
        assert!(pages.allocate(10).as_lent::<SharedRegion>().is_none());
    }

    #[test]
    fn a_probe_shows_whether_it_can_be_read() {
        let probe = Probe::new();
        let address = probe.address().unwrap();
        assert!(Probe::is_readable(address));
        drop(probe);
        assert!(!Probe::is_readable(address));
    }
}
