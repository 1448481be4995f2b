//! Runs as people like to see them: pages, tables and files for other programs, drawn from a run's folder alone, so that
//! it does not matter which engine or transport made it, or whether it is still going on. Nothing here changes a run.

mod drawing;
mod events;
mod figure;
mod follow;
mod live;
mod page;
mod read;
mod table;
mod tensorboard;
mod text;

pub use figure::{Figure, NamedLine, figures};
pub use follow::Follower;
pub use live::{LiveStatus, Viewer};
pub use page::{live_page, page};
pub use read::{Batches, Epoch, Graph, Now, ReadError, Run};
pub use table::csv;
pub use tensorboard::tensorboard;
pub use text::show;
