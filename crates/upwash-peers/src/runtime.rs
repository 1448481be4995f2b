//! What the transport needs besides the protocol: a clock, and a way to wait. Peers on a network implement it with
//! sockets and threads; the tests also with a simulated network and clock.

use crate::protocol::{Protocol, Time};

/// Drives a [`Protocol`].
pub trait Runtime {
    /// Calls the protocol at the current time, and carries out the actions that follow.
    fn call<T>(&self, call: impl FnOnce(&mut Protocol, Time) -> T) -> T;

    /// Waits until the protocol's version is another one than `version`, but not for longer than `until`.
    fn wait(&self, version: u64, until: Time);

    /// Waits until `poll` returns something, but not for longer than `until`.
    fn wait_for<T>(&self, until: Time, mut poll: impl FnMut(&mut Protocol, Time) -> Option<T>) -> Option<T> {
        loop {
            let (found, version, now) = self.call(|protocol, now| (poll(protocol, now), protocol.version(), now));
            if found.is_some() || now >= until {
                return found;
            }
            self.wait(version, until);
        }
    }

    /// Bytes sent, and bytes received.
    fn bytes(&self) -> (u64, u64);

    /// Called once, before the first round.
    fn start(&mut self) {}
}
