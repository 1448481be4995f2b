//! Decentralized training: many workers exchange models with their neighbors in a graph, without a central server.
//!
//! A run needs a configuration: data, model, graph, algorithm. [`Trainer`] turns it into one:
//!
//! ```
//! use upwash::{Config, Trainer};
//!
//! let config = Config::parse("[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 1\n", &[])?;
//! let summary = Trainer::new(config)
//!     .observe(|event| if let upwash::Event::Epoch { epoch, .. } = event { println!("epoch {epoch}") })
//!     .run()?;
//! assert_eq!(summary.workers, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! You can supply your own components. Each has a short example in the repository:
//!
//! | component | implement | pass it to | example |
//! |---|---|---|---|
//! | network | no trait: a list of [layers](model::LayerSpec) | [`Trainer::network`] | `own_network.rs` |
//! | model | [`Model`]: a gradient on flat vectors | [`Trainer::model`] | `own_module.rs` of `upwash-burn` |
//! | data | a [`Dataset`] in memory | [`Trainer::dataset`] | `own_dataset.rs` |
//! | algorithm | [`Algorithm`]: weights over received messages | [`Trainer::algorithm`] | `own_algorithm.rs` |
//! | optimizer | [`Optimizer`]: a direction from a gradient | [`Trainer::optimizer`] | `own_optimizer.rs` |
//! | training loop | drive a [`Node`] round by round | [`ExternalEngine`] | `own_loop.rs` |
//!
//! A run reports its progress as [`Event`]s and its result as a [`Summary`].

mod buffer;
mod gossip;
mod ids;
mod trained_model;
mod trainer;

pub mod algorithm;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod compress;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod data;
pub mod engine;
#[doc(hidden)]
pub mod experiment;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod loss;
#[doc(hidden)]
pub mod memory;
pub mod model;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod optimizer;
#[doc(hidden)]
pub mod run;
#[doc(hidden)]
pub mod schema;
pub mod transport;

pub use algorithm::{Algorithm, Assignment, LocalView, Outgoing, Plan, Vector, WorkerStats};
pub use config::Config;
pub use data::{Batch, Dataset, Images};
pub use engine::{Engine, EngineError, ExternalEngine, ExternalState, Model, Score};
pub use ids::{RowIndex, WorkerId};
pub use optimizer::{Optimizer, StepContext};
pub use run::{Event, NextRound, Node, Status, StopHandle, Summary};
pub use trained_model::{Evaluation, TrainedModel, TrainedModelError};
pub use trainer::{TrainError, Trainer};

/// Compiles the programs of the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
