//! Your own local optimizer: `cargo run --release -p upwash --example own_optimizer`

use upwash::{Config, Optimizer, StepContext, Trainer};

/// Adagrad: the larger the past gradients of a coordinate, the smaller its steps.
#[derive(Debug)]
struct Adagrad;

impl Optimizer for Adagrad {
    fn state_vectors(&self) -> Vec<&'static str> {
        vec!["squared gradients"]
    }

    fn direction(&self, _: StepContext, _: &[f32], state: &mut [&mut [f32]], gradient: &mut [f32]) {
        for (g, sum) in gradient.iter_mut().zip(state[0].iter_mut()) {
            *sum += *g * *g;
            *g /= sum.sqrt() + 1e-8;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("[training]\nepochs = 5\nlearning_rate = 0.02\n", &[])?;
    let output = std::env::args().nth(1).unwrap_or("runs/own-optimizer".into());
    let summary = Trainer::new(config) // the digits, AL-DSGD on L1
        .optimizer(Adagrad)
        .output(&output)
        .run()?;
    println!("{:.2} % right; upwash show {output}", 100.0 * summary.mean_accuracy);
    Ok(())
}
