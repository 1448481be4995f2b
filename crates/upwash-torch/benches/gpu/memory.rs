//! Compares estimates of GPU memory with measurements, and checks the error message for a lack of memory.

use crate::setup::{F32, Table, config, cuda_engine, prepare, run_to_end};
use upwash_torch::{CudaEngine, CudaOptions, MemoryEstimate, TorchNetwork};

/// Prints estimated and measured memory of several networks.
pub(crate) fn memory() {
    if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
        println!("model          workers streams batch precision  peak GiB described  measured  described measured");
    }
    let bf16 = CudaOptions::default();
    for (model, workers, streams, batch, options) in [
        ("resnet20", 8, None, 16, bf16),
        ("resnet20", 8, None, 128, F32),
        ("thin-resnet50", 8, None, 16, bf16),
        ("thin-resnet50", 8, None, 128, bf16),
        ("thin-resnet50", 8, Some(1), 128, bf16),
        ("thin-resnet50", 64, None, 16, bf16),
        ("resnet50", 8, None, 128, bf16),
        ("resnet50", 8, Some(2), 128, bf16),
        ("wrn28-10", 8, None, 32, bf16),
        ("thin-resnet50", 8, None, 128, F32),
        ("resnet50", 8, None, 32, F32),
        ("wrn28-10", 8, Some(2), 32, F32),
    ] {
        let images = workers * batch * 20;
        let text = format!(
            "model = \"{model}\"\n[data]\n\
             name = \"synthetic:shape=3x32x32,test=10000,train={images}\"\npartition = \"iid\"\n\
             [graph]\ntopology = \"ring:{workers}\"\n[training]\nepochs = 1\nbatch_size = {batch}\n"
        );
        let experiment = prepare(&text);
        let options = CudaOptions { streams, ..options };
        let spec = experiment.engine_spec();
        let predicted = MemoryEstimate::of(&spec, options).total() as f64;
        // libtorch keeps the peak per process, so every engine gets a separate process.
        if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
            let case = format!("{model} {workers} {streams:?} {batch} {options:?}");
            let program = std::env::current_exe().expect("the path of this program should be known");
            let child = std::process::Command::new(program)
                .arg("memory")
                .env("UPWASH_MEMORY_CASE", case)
                .output()
                .expect("this program should start");
            print!("{}", String::from_utf8_lossy(&child.stdout));
            eprint!("{}", String::from_utf8_lossy(&child.stderr));
            continue;
        }
        let case = format!("{model} {workers} {streams:?} {batch} {options:?}");
        if std::env::var("UPWASH_MEMORY_CASE").as_deref() != Ok(&case) {
            continue;
        }
        let network = TorchNetwork::new(experiment.network.clone());
        let measured_estimate =
            MemoryEstimate::measured(&spec, &network, options).expect("two workers should fit into memory");
        // The peak is that of the largest engine so far, which the measurement of two workers is not.
        let mut engine = cuda_engine(&experiment, options);
        run_to_end(&experiment, &mut engine);
        let peak = engine.memory().expect("the memory query should not fail").peak as f64;
        let used = streams.unwrap_or(workers).min(32);
        println!(
            "{model:<14} {workers:>7} {used:>7} {batch:>5} {:<9} {:>10.2} {:>9.2} {:>9.2} {:>10.2} {:>8.2}",
            format!("{:?}", options.precision),
            peak / (1u64 << 30) as f64,
            predicted / (1u64 << 30) as f64,
            measured_estimate.total() as f64 / (1u64 << 30) as f64,
            predicted / peak,
            measured_estimate.total() as f64 / peak
        );
    }
    if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
        too_large(&mut Table(true));
    }
}

/// Checks that an engine that does not fit is refused with a suggestion, and that the suggestion fits.
pub(crate) fn too_large(table: &mut Table) {
    let large = prepare(&config("resnet50", "name = \"dpsgd\"", 640, 1, ""));
    let network = TorchNetwork::new(large.network.clone());
    let error = CudaEngine::new(&large.engine_spec(), &network, F32).err();
    let error = error.map_or("no error: it fits".to_string(), |error| error.to_string());
    println!("    {error}");
    table.line("too little memory: the error suggests what fits", "", error.contains("--streams"));
    // The suggestion does fit.
    let suggested = error
        .split("--streams ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    if let Some(streams) = suggested {
        let options = CudaOptions { streams: Some(streams), ..F32 };
        let fits = CudaEngine::new(&large.engine_spec(), &network, options).is_ok();
        table.line(&format!("--streams {streams} fits"), "", fits);
    }
}
