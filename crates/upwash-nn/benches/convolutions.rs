//! Times chains of equal convolutions, the shapes of the built-in networks: `cargo bench -p upwash-nn`.
//!
//! Prints GFLOP/s of the forward pass and of forward and backward passes together, on one core, beside the most that the
//! core computes without reading memory, for all instructions that it has.

use pulp::{Simd, WithSimd};
use std::hint::black_box;
use std::time::Instant;
use upwash_nn::{Instructions, Kernel, Network, Workspace};

const IMAGES: usize = 32;
const LAYERS: usize = 6;

/// Channels, side of the images, side of the kernel.
const SHAPES: [(usize, usize, usize); 8] =
    [(16, 32, 3), (32, 16, 3), (64, 8, 3), (160, 32, 3), (64, 32, 1), (128, 16, 1), (256, 8, 1), (16, 32, 5)];

fn main() {
    let peak = pulp::Arch::new().dispatch(Peak);
    println!("the most that a core computes: {peak:.0} GFLOP/s");
    for instructions in Instructions::available() {
        for shape in SHAPES {
            if instructions != Instructions::Portable || shape.0 < 32 {
                convolutions(instructions, shape);
            }
        }
    }
}

fn convolutions(instructions: Instructions, (channels, side, size): (usize, usize, usize)) {
    let mut network = Network::<f32>::images([channels, side, side]);
    let (mut x, mut end) = (network.input(), 0);
    let kernel = Kernel { outputs: channels, size, stride: 1, padding: size / 2 };
    for _ in 0..LAYERS {
        let start = end;
        end += channels * channels * size * size;
        x = network.conv(x, kernel, start..end, None);
    }
    let x = network.global_average(x);
    let (weights, bias) = (end..end + 10 * channels, end + 10 * channels..end + 10 * channels + 10);
    let logits = network.linear(x, 10, weights, bias.clone());
    let network = network.finish(logits).with_instructions(instructions);
    let images = if channels > 100 && side > 16 { 4 } else { IMAGES };
    let parameters: Vec<f32> = (0..bias.end).map(|index| (index as f32).sin() * 0.05).collect();
    let pixels: Vec<f32> = (0..images * channels * side * side).map(|index| (index as f32).cos()).collect();
    let labels = vec![3; images];
    let (mut memory, mut gradient) = (Workspace::default(), vec![0.0; bias.end]);
    let products = (LAYERS * images * side * side * channels * channels * size * size) as f64;
    let forward = best(|| {
        black_box(network.score(&mut memory, &parameters, &[], &pixels, &labels));
    });
    let all = best(|| {
        black_box(network.gradient(&mut memory, &parameters, &mut [], &pixels, &labels, &mut gradient));
    });
    // The first convolution has no gradient of its input.
    let all_products = products * (3.0 - 1.0 / LAYERS as f64);
    println!(
        "{instructions}, {channels} channels, {side}x{side}, kernel {size}x{size}: forward {:.0} GFLOP/s, all {:.0}",
        2.0 * products / forward / 1e9,
        2.0 * all_products / all / 1e9
    );
}

/// The seconds of the best of five.
fn best(mut work: impl FnMut()) -> f64 {
    work();
    let time = |_| {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    (0..5).map(time).fold(f64::INFINITY, f64::min)
}

/// Multiplies and adds in registers.
struct Peak;

impl WithSimd for Peak {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        const ROUNDS: usize = 20_000_000;
        const CHAINS: usize = 12;
        let mut sums = [simd.splat_f32s(1.0); CHAINS];
        let (factor, term) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(0.001)));
        let began = Instant::now();
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, term);
            }
        }
        black_box(sums);
        (ROUNDS * CHAINS * 2 * S::F32_LANES) as f64 / began.elapsed().as_secs_f64() / 1e9
    }
}
