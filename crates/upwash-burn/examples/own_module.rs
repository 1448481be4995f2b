//! Your own Burn module, trained with AL-DSGD:
//! `cargo run --release --manifest-path crates/upwash-burn/Cargo.toml --example own_module`

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, activation::relu};
use upwash::{Config, Trainer};
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
    let model = BurnModule::new([1, 8, 8], |device: &Device| Net {
        conv: Conv2dConfig::new([1, 8], [3, 3]).init(device),
        norm: BatchNormConfig::new(8).init(device),
        linear: LinearConfig::new(8 * 6 * 6, 10).init(device),
    });
    let output = std::env::args().nth(1).unwrap_or("runs/own-module".into());
    let summary = Trainer::new(config).model(model).output(&output).run()?;
    println!("{:.2} % right; upwash show {output}", 100.0 * summary.mean_accuracy);
    Ok(())
}
