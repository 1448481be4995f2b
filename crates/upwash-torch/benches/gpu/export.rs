//! Exports rounds for a comparison with a program in another language.

use crate::setup::{F32, config, cuda_engine, prepare};
use upwash::engine::Engine;
use upwash::run::{ControlFlow, Event, Observer, Progress, TakeSnapshot, run};

/// Writes initial models, batches, losses and models of 20 rounds, so that another program can repeat them.
pub(crate) fn export(folder: &str) {
    std::fs::create_dir_all(folder).expect("the folder should be writable");
    let path = |name: &str| std::path::Path::new(folder).join(name);
    let floats = |name: &str, numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(path(name), bytes).expect("the file should be writable");
    };
    for (name, algorithm) in [("dpsgd", "name = \"dpsgd\""), ("al-dsgd", "name = \"al-dsgd\"")] {
        let experiment = prepare(&config("resnet20", algorithm, 16, 20, "momentum = 0.0\n"));
        let mut engine = cuda_engine(&experiment, F32);
        floats("models.bin", &engine.state().expect("the engine should not fail")[0].1);
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for round in 0..20 {
            for worker in 0..8 {
                let batch = experiment.sampler.batch(&experiment.data, worker, round);
                pixels.extend(batch.pixels);
                labels.extend(batch.labels);
            }
        }
        floats("pixels.bin", &pixels);
        std::fs::write(path("labels.bin"), labels).expect("the file should be writable");
        let mut exporter = Exporter::default();
        run(&experiment, &mut engine, Progress::start(8), &mut exporter).expect("the run should not fail");
        floats(&format!("{name}-models.bin"), &exporter.models);
        floats(&format!("{name}-losses.bin"), &exporter.losses);
    }
}

/// Records the losses of all workers in every round, and all models after it.
#[derive(Default)]
struct Exporter {
    losses: Vec<f32>,
    models: Vec<f32>,
}

impl Observer for Exporter {
    fn observe(&mut self, event: &Event) -> ControlFlow {
        if let Event::Round { losses, .. } = event {
            self.losses.extend(losses.iter().map(|&loss| loss as f32));
        }
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, _: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        self.models.extend(&snapshot().expect("the engine should not fail").1[0].1);
        ControlFlow::Continue
    }
}
