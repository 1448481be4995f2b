//! Runs as people like to see them: pages, tables and files for other programs, drawn from a run's folder alone, so that
//! it does not matter which engine or transport made it, or whether it is still going on. Nothing here changes a run.

mod figure;
mod page;
mod read;
mod table;
mod tensorboard;
mod text;

pub use figure::{Figure, figures};
pub use page::page;
pub use read::{Epoch, Graph, Node, ReadError, Run};
pub use table::csv;
pub use tensorboard::tensorboard;
pub use text::show;
