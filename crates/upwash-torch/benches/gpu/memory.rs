//! What fits, and what is said of what does not.

use crate::setup::{F32, Table, complete, config, fleet, prepare};
use upwash_torch::{CudaEngine, CudaOptions, MemoryEstimate, TorchNetwork};
/// Memory as it is predicted and as it is.
pub(crate) fn memory() {
    if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
        println!("model          workers streams batch precision  used GiB described     tried  described  tried");
    }
    let half = CudaOptions::default();
    for (model, workers, streams, batch, options) in [
        ("resnet20", 8, None, 16, half),
        ("resnet20", 8, None, 128, F32),
        ("thin-resnet50", 8, None, 16, half),
        ("thin-resnet50", 8, None, 128, half),
        ("thin-resnet50", 8, Some(1), 128, half),
        ("thin-resnet50", 64, None, 16, half),
        ("resnet50", 8, None, 128, half),
        ("resnet50", 8, Some(2), 128, half),
        ("wrn28-10", 8, None, 32, half),
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
        // The most that there was is kept for the process: every fleet gets one of its own.
        if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
            let case = format!("{model} {workers} {streams:?} {batch} {options:?}");
            let me = std::env::current_exe().expect("this program");
            let child = std::process::Command::new(me)
                .arg("memory")
                .env("UPWASH_MEMORY_CASE", case)
                .output()
                .expect("this program");
            print!("{}", String::from_utf8_lossy(&child.stdout));
            eprint!("{}", String::from_utf8_lossy(&child.stderr));
            continue;
        }
        let case = format!("{model} {workers} {streams:?} {batch} {options:?}");
        if std::env::var("UPWASH_MEMORY_CASE").as_deref() != Ok(&case) {
            continue;
        }
        let network = TorchNetwork::new(experiment.network.clone());
        let tried = MemoryEstimate::measured(&spec, &network, options).expect("two workers");
        // The peak is of the largest fleet so far, and two workers are not it.
        let mut engine = fleet(&experiment, options);
        complete(&experiment, &mut engine);
        let measured = engine.memory().expect("memory").peak as f64;
        let used = streams.unwrap_or(workers).min(32);
        println!(
            "{model:<14} {workers:>7} {used:>7} {batch:>5} {:<9} {:>10.2} {:>9.2} {:>9.2} {:>10.2} {:>6.2}",
            format!("{:?}", options.precision),
            measured / (1u64 << 30) as f64,
            predicted / (1u64 << 30) as f64,
            tried.total() as f64 / (1u64 << 30) as f64,
            predicted / measured,
            tried.total() as f64 / measured
        );
    }
    if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
        too_large(&mut Table(true));
    }
}

/// What does not fit is refused, and says what would; and that does.
pub(crate) fn too_large(table: &mut Table) {
    let large = prepare(&config("resnet50", "name = \"dpsgd\"", 640, 1, ""));
    let network = TorchNetwork::new(large.network.clone());
    let error = CudaEngine::new(&large.engine_spec(), &network, F32).err();
    let error = error.map_or("it fits".to_string(), |error| error.to_string());
    println!("    {error}");
    table.line("too much for the memory: what fits is named", "", error.contains("--streams"));
    // And what was named does fit.
    let fits = error
        .split("--streams ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    if let Some(streams) = fits {
        let options = CudaOptions { streams: Some(streams), ..F32 };
        let again = CudaEngine::new(&large.engine_spec(), &network, options).is_ok();
        table.line(&format!("--streams {streams} fits"), "", again);
    }
}
