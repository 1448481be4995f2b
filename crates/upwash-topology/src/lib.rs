//! Communication graphs for decentralized training, and the mathematics of averaging over them.
//!
//! The crate covers graphs and their [matchings](Graph::matchings), [mixing weights](Weights) and their spectra,
//! [MATCHA](Matcha)'s activation probabilities, [schedules](Schedule) that determine which links are up in round k,
//! [rotation](Rotation) of the workers over the nodes of a graph, and the [contraction](Leaders) of AL-DSGD. It does
//! not train, communicate or keep threads running. The only files it reads are edge lists and lists of matchings named
//! by a [`GraphSpec`].
//!
//! Workers are numbered from 0. A mixing matrix acts on the workers' models stacked as *rows*: `X' = W X`, so row i
//! holds the weights that worker i gives to each worker's model.
//!
//! ```
//! use upwash_topology::{GraphSpec, Matcha, Schedule, Weights};
//!
//! let graph = "paper:L1".parse::<GraphSpec>()?.build()?;
//! assert_eq!(graph.degrees(), [3, 5, 2, 4, 1, 2, 3, 4]);
//!
//! // D-PSGD's mixing matrix, and the factor by which a round shrinks the squared disagreement.
//! let w = Weights::Optimal.mixing(&graph)?;
//! assert!((w.contraction() - 0.653777).abs() < 1e-6);
//!
//! // MATCHA with budget 0.5 activates half of the matchings in an average round. On this graph
//! // that is 7.73 of the 12 links (64 %), and disagreement still shrinks a little faster.
//! let matcha = Matcha::solve(&graph, 0.5)?;
//! assert!(matcha.rho() < w.contraction());
//!
//! // Any round can be computed directly, without replaying the rounds before it.
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
mod matrix;
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
    Analysis, AnalysisError, AnalysisOptions, Contraction, FiniteTime, LeaderAnalysis, MatchaAnalysis, MatchaLeaders,
    RotationAnalysis,
};
pub use draw::{Drawing, Shape};
pub use graph::{Edge, Graph, GraphError, Matching};
pub use layout::layout;
pub use leaders::{LeaderWeights, LeaderWeightsError, Leaders};
pub use matcha::{Matcha, MatchaError};
pub use matrix::Matrix;
pub use mean_shift::MeanShift;
pub use mixing::Mixing;
pub use paper::paper_relabelings;
pub use rotation::{Rotation, RotationError};
pub use schedule::{Order, Round, Schedule, ScheduleError};
pub use spec::{GraphKind, GraphSpec, RandomOptions, SpecError};
pub use spectrum::Spectrum;
pub use weights::{WeightError, Weights};
pub use worst::WorstCase;
