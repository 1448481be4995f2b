//! One liar among the workers, on a GPU: clipping and verified leaders bound what it can do, as they do on the CPU.

use crate::common::Recorder;
use crate::setup::{F32, Table, cuda_engine};
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{Progress, run};
use upwash_testkit::liar::{CLIP, NAMES, config, honest_accuracy, registry};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Runs every lie with every seed; exits with an error if the honest workers lose more than 3 points.
pub(crate) fn liars() {
    let mut table = Table(true);
    let verified = format!("{CLIP}\nleaders = \"verified\"");
    for (base, robust) in [("dpsgd", CLIP), ("al-dsgd", &verified)] {
        let reference = mean(base, "none", "");
        for lie in ["none"].into_iter().chain(NAMES) {
            let found = mean(base, lie, robust) - reference;
            let allowed = if lie == "none" { 0.5 } else { 3.0 };
            let what = format!("{base}, lie {lie}: accuracy without a liar {reference:.2} %, with clipping");
            table.line(&what, &format!("{found:+.2}"), found > -allowed);
        }
    }
    if !table.0 {
        std::process::exit(1);
    }
}

/// The mean accuracy of the honest workers over the seeds, in percent.
fn mean(base: &str, lie: &str, robust: &str) -> f64 {
    let accuracy = |seed| {
        let config = config("complete:8", base, lie, robust, seed);
        let experiment = Experiment::prepare_with(config, &DataPaths::default(), &registry());
        let experiment = experiment.expect("the experiment should be valid");
        let mut engine = cuda_engine(&experiment, F32);
        let start = Progress::start(experiment.workers());
        let result = run(&experiment, &mut engine, start, &mut Recorder::default());
        honest_accuracy(&result.expect("the run should not fail").summary)
    };
    SEEDS.map(accuracy).sum::<f64>() / SEEDS.count() as f64
}
