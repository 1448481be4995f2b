//! File descriptors: the live page must not take those that training needs.

/// Descriptors that are left to the run: events, checkpoints, data and connections of peers.
const RESERVED: u64 = 256;
/// The limit that is asked for. More would not be used.
#[cfg(unix)]
const WANTED: u64 = 4096;

/// Raises the limit of open files as far as it is useful and allowed. Returns how many connections may be open.
#[cfg(unix)]
pub(crate) fn for_connections() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let mut current = limit.current.unwrap_or(u64::MAX);
    let wanted = WANTED.min(limit.maximum.unwrap_or(u64::MAX));
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    if current < wanted && setrlimit(Resource::Nofile, raised).is_ok() {
        current = wanted;
    }
    usize::try_from(current.saturating_sub(RESERVED)).unwrap_or(usize::MAX)
}

/// Systems without such a limit.
#[cfg(not(unix))]
pub(crate) fn for_connections() -> usize {
    usize::MAX
}

/// The limit of open files that the live page needs.
pub(crate) fn needed() -> u64 {
    RESERVED + 16
}
