//! A Burn module of your own, trained by AL-DSGD: `cargo run --release -p upwash-burn --example own_model`

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, activation::relu};
use std::sync::Arc;
use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};
use upwash::run::{ControlFlow, Event, Progress, run};
use upwash_burn::{BurnModule, Classifier, burn};

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    linear: Linear,
}

impl Classifier for Net {
    fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        let features = relu(self.norm.forward(self.conv.forward(images)));
        self.linear.forward(features.flatten(1, 3))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("[training]\nepochs = 5\n", &[])?; // the digits, AL-DSGD on L1
    let experiment = Experiment::prepare(config, &DataPaths::default())?;
    let model = BurnModule::new(experiment.data.train.shape, |device: &Device| Net {
        conv: Conv2dConfig::new([1, 8], [3, 3]).init(device),
        norm: BatchNormConfig::new(8).init(device),
        linear: LinearConfig::new(8 * 6 * 6, 10).init(device),
    });
    let mut fleet = experiment.fleet(Arc::new(model));
    let (start, mut silent) = (Progress::start(8), |_: &Event| ControlFlow::Continue);
    let outcome = run(&experiment, &mut fleet, start, &mut silent)?;
    println!("{:.2} % right", 100.0 * outcome.summary.mean_accuracy);
    Ok(())
}
