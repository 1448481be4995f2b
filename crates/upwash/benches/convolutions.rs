//! Times every convolution of the built-in networks within the pass of its network, on one core.
//!
//! `cargo bench -p upwash --bench convolutions` prints how fast forward and backward passes are: as a share of the most that
//! the core computes without reading memory, and of the limit, which is the larger of the times that the products take
//! and that reading the input and writing the output take. With names of models as arguments, only those. The best of
//! many passes counts, so that other programs on the machine disturb little.

use pulp::{Simd, WithSimd};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};
use upwash::model::{ModelSpec, Network, Slot};
use upwash_nn::{CompiledNetwork, Cost, Instructions, LayerTime, Workspace};

/// The models, with the shape of their images, the number of images and the seconds that each is timed.
const MODELS: [(&str, [usize; 3], usize, u64); 5] = [
    ("resnet20", [3, 32, 32], 8, 4),
    ("thin-resnet50", [3, 32, 32], 8, 6),
    ("cnn", [1, 8, 8], 32, 2),
    ("resnet50", [3, 32, 32], 8, 15),
    ("wrn28-10", [3, 32, 32], 8, 30),
];

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    for instructions in Instructions::available() {
        if instructions == Instructions::Portable {
            continue;
        }
        for (model, shape, images, seconds) in MODELS {
            if chosen.is_empty() || chosen.iter().any(|name| name == model) {
                let spec: ModelSpec = model.parse().expect("the model should be built in");
                println!("{model}, {instructions}:");
                time(&spec.network(shape, 10), instructions, images, Duration::from_secs(seconds));
            }
        }
    }
}

fn time(network: &Network, instructions: Instructions, images: usize, limit: Duration) {
    let layout = network.layout();
    let ranges = |slots: &[Slot]| slots.iter().map(|slot| slot.offset..slot.offset + slot.size()).collect();
    let compiled =
        CompiledNetwork::new(network.input, &network.layers, ranges(&layout.parameters), ranges(&layout.statistics));
    let mut compiled = compiled.with_instructions(instructions);
    let times = compiled.time_layers();
    let parameters = network.start(0, 0);
    let pixels: Vec<f32> =
        (0..images * network.input.iter().product::<usize>()).map(|index| (index as f32).cos()).collect();
    let labels = vec![3; images];
    let mut statistics = vec![1.0; layout.statistics.iter().map(Slot::size).sum()];
    let (mut memory, mut gradient) = (Workspace::default(), vec![0.0; parameters.len()]);
    let mut copied = [vec![1.0f32; COPIED], vec![0.0f32; COPIED]];
    let (began, mut machine) = (Instant::now(), Machine { peak: 0.0, memory: 0.0 });
    while began.elapsed() < limit {
        black_box(compiled.gradient(&mut memory, &parameters, &mut statistics, &pixels, &labels, &mut gradient));
        machine.peak = machine.peak.max(instructions.dispatch(Peak));
        machine.memory = machine.memory.max(copy(&mut copied));
    }
    machine.print(&times.iter().map(|time| &**time).collect::<Vec<_>>());
}

/// The elements of the copy that measures the memory: 16 MB, twice, as the activations of a batch.
const COPIED: usize = 4 << 20;

/// GB/s of a copy, read and written.
fn copy([from, to]: &mut [Vec<f32>; 2]) -> f64 {
    let began = Instant::now();
    to.copy_from_slice(from);
    black_box(to);
    (2 * COPIED * size_of::<f32>()) as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// What a core can do at most.
struct Machine {
    /// GFLOP/s in registers.
    peak: f64,
    /// GB/s from memory.
    memory: f64,
}

impl Machine {
    /// The nanoseconds that the products take at least, and those that products or memory do.
    fn limits(&self, products: usize, elements: usize) -> (f64, f64) {
        let compute = 2.0 * products as f64 / self.peak;
        (compute, compute.max((elements * size_of::<f32>()) as f64 / self.memory))
    }

    /// Prints the best of the layers with the same name.
    fn print(&self, times: &[&LayerTime]) {
        println!("  at most {:.0} GFLOP/s, and {:.0} GB/s from memory", self.peak, self.memory);
        let mut best: BTreeMap<&str, (usize, [f64; 2], Cost)> = BTreeMap::new();
        let mut total = (0.0, 0.0);
        for (index, time) in times.iter().enumerate() {
            total.0 += self.limits(time.cost.products * (1 + time.cost.backward_passes), 0).0;
            total.1 += time.forward() + time.backward();
            let (_, best, _) = best.entry(&time.name).or_insert((index, [f64::INFINITY; 2], time.cost));
            *best = [best[0].min(time.forward()), best[1].min(time.backward())];
        }
        let mut best: Vec<_> = best.into_iter().collect();
        best.sort_by_key(|(_, (index, ..))| *index);
        for (name, (_, [forward, backward], cost)) in best {
            let Cost { products, backward_passes, inputs, outputs, .. } = cost;
            // Reads the input and the gradient of the output; reads and writes the gradient of the input.
            let moved = inputs + outputs + 2 * inputs * (backward_passes - 1);
            let (forward_limits, backward_limits) =
                (self.limits(products, inputs + outputs), self.limits(backward_passes * products, moved));
            let percent = |limit: f64, time: f64| 100.0 * limit / time;
            println!(
                "  {name:36} forward {:3.0} % of the peak, {:3.0} % of the limit; backward {:3.0} %, {:3.0} %",
                percent(forward_limits.0, forward),
                percent(forward_limits.1, forward),
                percent(backward_limits.0, backward),
                percent(backward_limits.1, backward),
            );
        }
        println!("  all convolutions: {:.0} % of the peak", 100.0 * total.0 / total.1);
    }
}

/// GFLOP/s of a loop that multiplies and adds in registers, for about a millisecond.
struct Peak;

impl WithSimd for Peak {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        const ROUNDS: usize = 100_000;
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
