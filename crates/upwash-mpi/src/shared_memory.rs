//! Shared memory between the ranks on one host. A message to a rank on the same host contains only the address of its
//! values, and the receiver reads them in place.
//!
//! A region is an anonymous file in memory (memfd), which other ranks on the host open through `/proc/PID/fd`. It has
//! no name that could be left behind, and the kernel frees it with its last user. Each region starts with the number of
//! ranks that still read it. When that number is zero, its owner may write the region again.
//!
//! A process number means different processes in different PID namespaces, and is used again. Every region therefore
//! holds a random nonce, which its address repeats: a reader that finds another file at the address refuses it. The
//! length of a region is sealed, so that an access never faults.
//!
//! One file, because the tests at its end need private parts of regions.

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use upwash::transport::{Buffer, SharedBuffer};

/// Offset of the values in a region, in bytes. The number of readers and the nonce are in front of them.
const VALUES_OFFSET: usize = 4096;
/// Offset of the nonce in a region, in bytes.
const NONCE_OFFSET: usize = 16;
/// What identifies a region beyond its address.
type Nonce = [u8; 16];
/// What must hold of a region: its length never changes.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Maximum number of regions of a rank for messages of one length. The rank writes one while its neighbors read
/// another, and a slow neighbor may still read a third.
const MAX_REGIONS: usize = 4;
/// Messages with fewer values are sent by MPI, which is as fast for them.
const MIN_SHARED_LENGTH: usize = 4096;

/// Address of a region, by which other processes on the host open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pid: u32,
    fd: u32,
    nonce: Nonce,
}

impl Address {
    /// 64-bit words of an encoded address.
    pub(crate) const WORDS: usize = 3;
    /// Bytes of an encoded address.
    pub(crate) const LENGTH: usize = 8 * Self::WORDS;

    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.fd.to_le_bytes());
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let [pid, fd] = [0, 4].map(|at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        let mut nonce = Nonce::default();
        nonce.copy_from_slice(&bytes[8..]);
        Self { pid, fd, nonce }
    }

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        let bytes = self.to_bytes();
        let (words, _) = bytes.as_chunks::<8>();
        std::array::from_fn(|index| u64::from_le_bytes(words[index]))
    }

    pub(crate) fn from_words(words: [u64; Self::WORDS]) -> Self {
        let mut bytes = [0; Self::LENGTH];
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        Self::from_bytes(bytes)
    }
}

/// Bytes of a region of `length` values, if such a region can exist.
fn region_bytes(length: usize) -> Option<usize> {
    length.checked_mul(4)?.checked_add(VALUES_OFFSET)
}

/// A region mapped into the memory of this process.
struct Mapping {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that any thread may access. The number of readers is atomic. Only the owner
// writes the values, and only while that number is zero.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, length: usize) -> rustix::io::Result<Self> {
        let bytes = region_bytes(length).ok_or(Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so it overlaps no other memory.
        let pointer = unsafe {
            let any = std::ptr::null_mut();
            mmap(any, bytes, access, MapFlags::SHARED, file, 0)?
        };
        let pointer = NonNull::new(pointer.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { pointer, bytes })
    }

    /// Pointer to the nonce.
    fn nonce_pointer(&self) -> *mut Nonce {
        // SAFETY: `new` maps at least VALUES_OFFSET bytes, in which the nonce lies.
        unsafe { self.pointer.as_ptr().add(NONCE_OFFSET).cast() }
    }

    /// The nonce, which the owner wrote before it told anyone the address.
    fn nonce(&self) -> Nonce {
        // SAFETY: the pointer is to bytes of the mapping, for which any value is valid.
        unsafe { self.nonce_pointer().read_volatile() }
    }

    /// Number of ranks that still read the region.
    fn readers(&self) -> &AtomicU32 {
        // SAFETY: the mapping starts at a page boundary, so the pointer is aligned. The mapping lives as long as
        // `self`, and all processes access this word only atomically.
        unsafe { AtomicU32::from_ptr(self.pointer.as_ptr().cast()) }
    }

    /// Pointer to the first value.
    fn values_pointer(&self) -> *mut f32 {
        // SAFETY: `new` maps at least VALUES_OFFSET bytes.
        unsafe { self.pointer.as_ptr().add(VALUES_OFFSET).cast() }
    }

    fn values(&self) -> &[f32] {
        // SAFETY: the mapping has this many values after the offset. The owner does not write them while they are read:
        // see `SharedMemory::allocate` and `SharedRegion::values_mut`.
        unsafe { std::slice::from_raw_parts(self.values_pointer(), (self.bytes - VALUES_OFFSET) / 4) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this many bytes. All references to them borrow from `self`, so none is left.
        let _ = unsafe { munmap(self.pointer.as_ptr().cast(), self.bytes) };
    }
}

/// A region of this rank.
pub(crate) struct OwnRegion {
    mapping: Mapping,
    file: OwnedFd,
}

impl OwnRegion {
    fn new(length: usize) -> rustix::io::Result<Self> {
        let file = memfd_create("upwash", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, region_bytes(length).ok_or(Errno::NOMEM)? as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        let mapping = Mapping::new(&file, length)?;
        let mut nonce = Nonce::default();
        if getrandom(&mut nonce, GetRandomFlags::empty())? != nonce.len() {
            return Err(Errno::AGAIN);
        }
        // SAFETY: the pointer is to bytes of the mapping, and no other process has its address yet.
        unsafe { mapping.nonce_pointer().write_volatile(nonce) };
        Ok(Self { mapping, file })
    }

    fn address(&self) -> Address {
        let fd = self.file.as_raw_fd().unsigned_abs();
        Address { pid: std::process::id(), fd, nonce: self.mapping.nonce() }
    }
}

/// A region in use by a message of this rank. [`SharedMemory`] keeps a second handle to reuse it later.
pub(crate) struct SharedRegion(Arc<OwnRegion>);

impl SharedRegion {
    pub(crate) fn address(&self) -> Address {
        self.0.address()
    }

    /// Registers ranks that will read the region. Call it before sending them the address.
    pub(crate) fn add_readers(&self, readers: u32) {
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
        let count = (mapping.bytes - VALUES_OFFSET) / 4;
        // SAFETY: the mapping has this many values after the offset. `SharedMemory::allocate` hands out each region
        // only once at a time, so `&mut self` is the only access in this process. No other rank reads the region.
        Some(unsafe { std::slice::from_raw_parts_mut(mapping.values_pointer(), count) })
    }
}

/// A region of another rank that this rank reads. Dropping it unregisters this reader.
struct RemoteBuffer(Arc<Mapping>);

impl SharedBuffer for RemoteBuffer {
    fn values(&self) -> &[f32] {
        self.0.values()
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        None
    }
}

impl Drop for RemoteBuffer {
    fn drop(&mut self) {
        self.0.readers().fetch_sub(1, Ordering::AcqRel);
    }
}

/// The regions of this rank, for reuse.
#[derive(Default)]
pub(crate) struct SharedMemory {
    regions: Vec<Arc<OwnRegion>>,
}

impl SharedMemory {
    /// Allocates a buffer of `length` values: in a region that is free, or else in private memory.
    pub(crate) fn allocate(&mut self, length: usize) -> Buffer {
        let private = || Buffer::from(vec![0.0; length]);
        if length < MIN_SHARED_LENGTH {
            return private();
        }
        let fits = |region: &&Arc<OwnRegion>| Some(region.mapping.bytes) == region_bytes(length);
        let is_free = |region: &&Arc<OwnRegion>| {
            let readers = region.mapping.readers().load(Ordering::Acquire);
            let free = readers == 0 && Arc::strong_count(region) == 1;
            // All accesses of the previous users happen before the next write.
            fence(Ordering::Acquire);
            free
        };
        let fitting = self.regions.iter().filter(fits);
        if let Some(region) = fitting.clone().find(is_free) {
            return Buffer::shared(SharedRegion(Arc::clone(region)));
        }
        if fitting.count() >= MAX_REGIONS {
            return private();
        }
        match OwnRegion::new(length) {
            Ok(region) => {
                let region = Arc::new(region);
                self.regions.push(Arc::clone(&region));
                Buffer::shared(SharedRegion(region))
            }
            Err(_) => private(),
        }
    }
}

/// The regions of other ranks that this process has mapped.
#[derive(Default)]
pub(crate) struct RemoteRegions(HashMap<Address, Arc<Mapping>>);

impl RemoteRegions {
    /// The values of a region of another rank. Its owner must have registered this rank as a reader.
    pub(crate) fn read(&mut self, address: Address, length: usize) -> Result<Buffer, String> {
        let mapping = match self.0.get(&address) {
            Some(mapping) if Some(mapping.bytes) == region_bytes(length) && mapping.nonce() == address.nonce => {
                Arc::clone(mapping)
            }
            _ => {
                let mapping = Arc::new(map_remote(address, length)?);
                self.0.insert(address, Arc::clone(&mapping));
                mapping
            }
        };
        Ok(Buffer::shared(RemoteBuffer(mapping)))
    }
}

/// Maps a region of another process. Fails if the file at the address is not that region, or has another length.
fn map_remote(address: Address, length: usize) -> Result<Mapping, String> {
    let path = format!("/proc/{}/fd/{}", address.pid, address.fd);
    let map = || {
        let file = open(&path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        let size = usize::try_from(fstat(&file)?.st_size).ok();
        match is_sealed && size == region_bytes(length) {
            true => Mapping::new(file, length),
            false => Err(Errno::INVAL),
        }
    };
    let mapping = map().map_err(|error: Errno| format!("cannot map {path}: {error}"))?;
    match mapping.nonce() == address.nonce {
        true => Ok(mapping),
        false => Err(format!("{path} belongs to another process: the ranks have different PID namespaces")),
    }
}

/// A region with known values, with which the ranks on a host test whether they can read the memory of each other.
pub(crate) struct Probe(Option<OwnRegion>);

/// Values in a probe.
const PROBE_VALUES: [f32; 2] = [0.577, 1.618];

impl Probe {
    pub(crate) fn new() -> Self {
        let region = OwnRegion::new(PROBE_VALUES.len()).ok();
        if let Some(region) = &region {
            // SAFETY: the region has room for these values, and no other process has its address yet.
            unsafe { std::ptr::copy(PROBE_VALUES.as_ptr(), region.mapping.values_pointer(), PROBE_VALUES.len()) };
        }
        Self(region)
    }

    pub(crate) fn address(&self) -> Option<Address> {
        self.0.as_ref().map(OwnRegion::address)
    }

    /// Whether this rank can read the probe of another rank.
    pub(crate) fn is_readable(address: Address) -> bool {
        map_remote(address, PROBE_VALUES.len()).is_ok_and(|mapping| mapping.values() == PROBE_VALUES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_reused_only_after_all_readers_have_dropped_it() {
        let (mut memory, mut remote) = (SharedMemory::default(), RemoteRegions::default());
        let count = 2 * MIN_SHARED_LENGTH;
        let mut first = memory.allocate(count);
        first.fill(1.0);
        let region: &SharedRegion = first.as_shared().unwrap();
        let address = region.address();
        assert_eq!(Address::from_bytes(address.to_bytes()), address);
        region.add_readers(2);
        let one = remote.read(address, count).unwrap();
        let two = remote.read(address, count).unwrap();
        assert!(one.iter().chain(&*two).all(|&x| x == 1.0));
        drop(first);
        // The first region still has readers, so the next buffer uses another one.
        let mut second = memory.allocate(count);
        second.fill(2.0);
        let other = second.as_shared::<SharedRegion>().unwrap().address();
        assert_ne!(other, address);
        assert!(one.iter().all(|&x| x == 1.0));
        drop((one, two));
        assert_eq!(memory.allocate(count).as_shared::<SharedRegion>().unwrap().address(), address);
        // A reader that writes to the buffer writes to a copy.
        second.as_shared::<SharedRegion>().unwrap().add_readers(1);
        let mut received = remote.read(other, count).unwrap();
        received[0] = 7.0;
        assert_eq!((second[0], received[0]), (2.0, 7.0));
        // A wrong length and a file that does not exist are errors.
        assert!(remote.read(address, count + 1).is_err());
        let missing = Address { fd: 1 << 20, ..address };
        assert!(remote.read(missing, count).is_err());
        // So is another region of the same length at the address, as in another PID namespace.
        let mistaken = Address { nonce: other.nonce, ..address };
        assert!(remote.read(mistaken, count).is_err());
        // The number of regions is bounded, and short messages use none.
        let buffers: Vec<Buffer> = (0..9).map(|_| memory.allocate(count)).collect();
        let shared = buffers.iter().filter(|buffer| buffer.as_shared::<SharedRegion>().is_some());
        assert!(shared.count() < MAX_REGIONS);
        assert!(memory.allocate(10).as_shared::<SharedRegion>().is_none());
    }

    #[test]
    fn probe_is_readable_until_it_is_dropped() {
        let probe = Probe::new();
        let address = probe.address().unwrap();
        assert!(Probe::is_readable(address));
        assert_eq!(Address::from_words(address.to_words()), address);
        // A reader in another PID namespace finds its own probe at the address.
        let nonce = Probe::new().address().unwrap().nonce;
        assert!(!Probe::is_readable(Address { nonce, ..address }));
        drop(probe);
        assert!(!Probe::is_readable(address));
    }

    /// A file that could shrink while it is read would end the reader with SIGBUS.
    #[test]
    fn only_sealed_regions_are_mapped() {
        let region = OwnRegion::new(2).unwrap();
        assert!(ftruncate(&region.file, 0).is_err());
        let file = memfd_create("upwash", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, region_bytes(2).unwrap() as u64).unwrap();
        let address = Address { pid: std::process::id(), fd: file.as_raw_fd().unsigned_abs(), nonce: [0; 16] };
        assert!(map_remote(address, 2).is_err());
        fcntl_add_seals(&file, SEALS).unwrap();
        assert!(map_remote(address, 2).is_ok());
        assert!(map_remote(address, usize::MAX / 4).is_err());
    }
}
