//! Your own data, in memory: `cargo run --release -p upwash --example own_dataset`

use upwash::{Config, Dataset, Images, Trainer};

/// Noisy stripes of four widths, 1x12x12 pixels. The width is the class.
fn stripes(count: usize, mut noise: u32) -> Images {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for image in 0..count {
        let class = image % 4;
        for place in 0..144 {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let stripe = u8::from(place % 12 / (class + 1) % 2 == 0);
            pixels.push(120 * stripe + (noise >> 24) as u8 / 2);
        }
        labels.push(class as u8);
    }
    Images { shape: [1, 12, 12], pixels, labels }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Dataset::new("stripes", stripes(1600, 1), stripes(400, 2));
    let config = Config::parse("model = \"mlp:16\"\n[training]\nepochs = 5\n", &[])?;
    let output = std::env::args().nth(1);
    let output = output.unwrap_or("runs/own-dataset".into());
    let trainer = Trainer::new(config).dataset(data);
    let summary = trainer.output(&output).run()?;
    println!("{:.2} % right", 100.0 * summary.mean_accuracy);
    Ok(())
}
