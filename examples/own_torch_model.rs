//! Your own tch module, trained with AL-DSGD on a GPU if there is one.

use std::sync::Arc;
use upwash::config::Config;
use upwash::engine::Engine;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{Progress, run};
use upwash_torch::tch::{Tensor, nn, nn::ModuleT};
use upwash_torch::{Cuda, CudaEngine, CudaOptions, TorchCpuModel, TorchModule};

#[derive(Debug)]
struct Net {
    conv: nn::Conv2D,
    linear: nn::Linear,
}

impl ModuleT for Net {
    fn forward_t(&self, images: &Tensor, _train: bool) -> Tensor {
        let features = images.apply(&self.conv).relu();
        features.flatten(1, -1).apply(&self.linear)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("[training]\nepochs = 20\n", &[])?; // the digits, AL-DSGD on L1
    let experiment = Experiment::prepare(config, &DataPaths::default())?;
    let (shape, spec) = (experiment.data.train.shape, experiment.engine_spec());
    let model = TorchModule::new(shape, |path| Net {
        conv: nn::conv2d(path / "conv", 1, 8, 3, Default::default()),
        linear: nn::linear(path / "linear", 8 * 6 * 6, 10, Default::default()),
    });
    let mut engine: Box<dyn Engine> = match Cuda::detect() {
        Cuda::Devices(_) => Box::new(CudaEngine::new(&spec, &model, CudaOptions::default())?),
        _ => Box::new(experiment.cpu_engine(Arc::new(TorchCpuModel::new(Arc::new(model), shape)))),
    };
    let outcome = run(&experiment, &mut *engine, Progress::start(8), &mut ())?;
    println!("{:.2} % right", 100.0 * outcome.summary.mean_accuracy);
    Ok(())
}
