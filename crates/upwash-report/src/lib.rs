//! Reports of runs: HTML pages, figures, terminal tables, CSV and TensorBoard files.
//!
//! The crate reads only the files in a run's folder. It therefore works for every engine and transport, and for runs
//! that are still in progress. It never modifies a run.

mod charts;
mod drawing;
mod events;
mod figure;
mod follow;
mod list;
mod live;
mod page;
mod read;
pub mod statistics;
mod table;
mod tensorboard;
mod text;

pub use figure::{Figure, NamedLine, figures};
pub use follow::Follower;
pub use list::{list, runs_in};
pub use live::{LiveStatus, Viewer};
pub use page::{live_page, page};
pub use read::{Batches, Epoch, Graph, LiveState, OverSeeds, ReadError, Run};
pub use table::csv;
pub use tensorboard::tensorboard;
pub use text::{shard_table, show, summary_table};
