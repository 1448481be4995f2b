//! Your own network, layer by layer: `cargo run --release -p upwash --example own_network`

use upwash::model::LayerSpec::{self, BatchNorm, GlobalAverage, Relu, Residual};
use upwash::{Config, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("[training]\nepochs = 10\n", &[])?; // the digits, AL-DSGD on L1
    let block = || Residual { body: vec![LayerSpec::conv(16, 3), BatchNorm], shortcut: vec![] };
    let layers = [
        LayerSpec::conv(16, 3),
        BatchNorm,
        Relu,
        block(),
        Relu,
        LayerSpec::MaxPool { size: 2 },
        block(),
        Relu,
        GlobalAverage,
        LayerSpec::logits(),
    ];
    let output = std::env::args().nth(1).unwrap_or("runs/own-network".into());
    let summary = Trainer::new(config).network("small-resnet", layers).output(&output).run()?;
    println!("{:.2} % right; upwash show {output}", 100.0 * summary.mean_accuracy);
    Ok(())
}
