//! Everything that decentralized training needs to know about its graph.
//!
//! Pure mathematics: graphs and their [matchings](Graph::matchings), [mixing weights](Weights) and
//! their spectra, [MATCHA](Matcha)'s activation probabilities, [schedules](Schedule) that say which
//! links are up in round k, [rotation](Rotation) of the workers' places, and the
//! [contraction](Leaders) of AL-DSGD. There is no training here, no thread of its own and no
//! network. The one file it reads is an edge list that a [`GraphSpec`] names.
//!
//! Workers are numbered from 0. A mixing matrix acts on the workers' models stacked as *rows*:
//! `X' = W X`, so row i says what worker i takes from whom.
//!
//! ```
//! use upwash_topology::{GraphSpec, Matcha, Schedule, Weights};
//!
//! let graph = "paper:L1".parse::<GraphSpec>()?.build()?;
//! assert_eq!(graph.degrees(), [3, 5, 2, 4, 1, 2, 3, 4]);
//!
//! // D-PSGD's matrix, and how fast plain averaging over it forgets disagreement.
//! let w = Weights::Optimal.mixing(&graph)?;
//! assert!((w.contraction() - 0.653777).abs() < 1e-6);
//!
//! // MATCHA reaches the same with half of the communication.
//! let matcha = Matcha::solve(&graph, 0.5)?;
//! assert!(matcha.rho() < w.contraction());
//!
//! // Which links are up in round 10 000? No replay needed.
//! let schedule = Schedule::matcha(&matcha, 7);
//! assert!(schedule.round(10_000).links().len() <= 12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alpha;
mod analysis;
mod coloring;
mod draw;
mod edge_list;
mod generators;
mod graph;
mod layout;
mod leaders;
mod matcha;
mod mean_shift;
mod mixing;
mod paper;
mod probabilities;
pub mod published;
pub mod random;
mod rotation;
mod schedule;
mod spec;
mod spectrum;
mod weights;
mod worst;

pub use analysis::{
    Analysis, AnalysisError, AnalysisOptions, Contraction, LeaderAnalysis, MatchaAnalysis, MatchaLeaders,
    RotationAnalysis,
};
pub use draw::{draw, draw_rotation};
pub use graph::{Edge, Graph, GraphError, Matching};
pub use layout::layout;
pub use leaders::{LeaderWeights, LeaderWeightsError, Leaders};
pub use matcha::{Matcha, MatchaError};
pub use mean_shift::MeanShift;
pub use mixing::Mixing;
pub use paper::paper_relabelings;
pub use rotation::{Rotation, RotationError};
pub use schedule::{Order, Round, Schedule, ScheduleError};
pub use spec::{GraphKind, GraphSpec, Random, SpecError};
pub use spectrum::Spectrum;
pub use weights::{WeightError, Weights};
pub use worst::Worst;
