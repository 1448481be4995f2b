//! For the same rounds in another language.

use crate::setup::{F32, config, fleet, prepare};
use upwash::engine::Engine;
use upwash::run::{ControlFlow, Event, Observer, Progress, TakeSnapshot, run};
/// What a program in another language needs for the same 20 rounds.
pub(crate) fn export(folder: &str) {
    std::fs::create_dir_all(folder).expect("a folder");
    let path = |name: &str| std::path::Path::new(folder).join(name);
    let floats = |name: &str, numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(path(name), bytes).expect("a file");
    };
    for (name, algorithm) in [("dpsgd", "name = \"dpsgd\""), ("al-dsgd", "name = \"al-dsgd\"")] {
        let experiment = prepare(&config("resnet20", algorithm, 16, 20, "momentum = 0.0\n"));
        let mut engine = fleet(&experiment, F32);
        floats("models.bin", &engine.state().expect("an engine that works")[0].1);
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for round in 0..20 {
            for worker in 0..8 {
                let batch = experiment.sampler.batch(&experiment.data, worker, round);
                pixels.extend(batch.pixels);
                labels.extend(batch.labels);
            }
        }
        floats("pixels.bin", &pixels);
        std::fs::write(path("labels.bin"), labels).expect("a file");
        let mut exporter = Exporter::default();
        run(&experiment, &mut engine, Progress::start(8), &mut exporter).expect("a run");
        floats(&format!("{name}-models.bin"), &exporter.models);
        floats(&format!("{name}-losses.bin"), &exporter.losses);
    }
}

/// Everyone's losses in every round, and all models after it.
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
        self.models.extend(&snapshot().expect("an engine that works").1[0].1);
        ControlFlow::Continue
    }
}
