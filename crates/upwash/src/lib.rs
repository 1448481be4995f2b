//! Decentralized training: many workers, no server.

pub mod algorithm;
pub mod checkpoint;
pub mod clock;
pub mod compress;
pub mod config;
pub mod data;
pub mod engine;
pub mod experiment;
pub mod files;
mod gossip;
pub mod loss;
pub mod model;
pub mod optimizer;
pub mod run;
pub mod transport;
