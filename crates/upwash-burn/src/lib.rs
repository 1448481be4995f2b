//! The CPU engine of Upwash, on Burn's `flex` backend: pure Rust, nothing to install.
//!
//! Burn computes gradients; everything else (replicas, optimizer, mixing) is the
//! [`Fleet`](upwash::fleet::Fleet)'s, on flat vectors. Inside, every call is single-threaded: the
//! cores are busy with other workers.

mod network;

pub use network::BurnNetwork;
