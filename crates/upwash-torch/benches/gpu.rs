//! The GPU engine checked and timed: `gpu check`, `gpu scores`, `gpu memory`, `gpu speed`, `gpu export DIR` (see
//! scripts/check-gpu.sh). Needs a GPU; not part of the tests.

#[cfg(not(feature = "libtorch"))]
fn main() {
    println!("built without the feature `libtorch`");
}

#[cfg(feature = "libtorch")]
fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    match arguments.next().as_deref() {
        Some("check") => with_torch::check(),
        Some("speed") => with_torch::speed(),
        Some("memory") => with_torch::memory(),
        Some("scores") => with_torch::scores(),
        Some("export") => with_torch::export(&arguments.next().expect("a folder")),
        _ => eprintln!("gpu check | gpu scores | gpu memory | gpu speed | gpu export DIR"),
    }
}

#[cfg(feature = "libtorch")]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(feature = "libtorch")]
mod with_torch {
    use super::common::{Witness, compare};
    use std::sync::Arc;
    use std::time::Instant;
    use upwash::algorithm::{
        self, Algorithm, Dpsgd, Exchange, LocalSgd, Registry, Report, Setting,
    };
    use upwash::config::Config;
    use upwash::crew::Crew;
    use upwash::data::Augmentation;
    use upwash::engine::{Engine, Part, State, Turn};
    use upwash::experiment::{Experiment, Folders};
    use upwash::mix::{Guest, Terms};
    use upwash::run::{Event, Moment, Next, Observer, Progress, run};
    use upwash::together::share;
    use upwash_torch::tch::{self, Tensor};
    use upwash_torch::{
        BoundModel, CudaFleet, CudaOptions, Needs, OnCpu, Precision, TorchModel, TorchNetwork,
    };

    fn prepare(config: &str) -> Experiment {
        let config = Config::parse(config, &[]).expect("a configuration");
        let mut experiment =
            Experiment::prepare(config, &Folders::default()).expect("an experiment");
        let data = Arc::get_mut(&mut experiment.data).expect("ours alone");
        data.augmentation = Augmentation::CropAndFlip;
        experiment
    }

    /// `rounds` rounds of eight workers in one epoch.
    fn config(model: &str, algorithm: &str, batch: usize, rounds: usize, more: &str) -> String {
        let images = 8 * batch * rounds;
        format!(
            "model = \"{model}\"\n[data]\nname = \"synthetic:shape=3x32x32,test=500,train={images}\"\n\
             partition = \"iid\"\n[algorithm]\n{algorithm}\n[training]\nepochs = 1\nbatch = {batch}\n\
             rate = 0.01\nweight_decay = 5e-4\n{more}"
        )
    }

    fn complete(experiment: &Experiment, engine: &mut dyn Engine) -> (Vec<Vec<f64>>, State) {
        let mut witness = Witness::default();
        let start = Progress::start(experiment.workers());
        run(experiment, engine, start, &mut witness).expect("a run");
        (witness.losses, engine.state())
    }

    fn fleet(experiment: &Experiment, options: CudaOptions) -> CudaFleet {
        let network = TorchNetwork::new(experiment.network.clone());
        CudaFleet::new(&Crew::of(experiment), &network, options).unwrap_or_else(|error| {
            eprintln!("{error}");
            std::process::exit(1)
        })
    }

    struct Table(bool);

    impl Table {
        fn line(&mut self, what: &str, found: &str, right: bool) {
            let verdict = if right { "ok" } else { "WRONG" };
            println!("{what:<70} {found:<8} {verdict}");
            self.0 &= right;
        }
    }

    const F32: CudaOptions = CudaOptions {
        device: 0,
        precision: Precision::F32,
        streams: None,
        eager: false,
    };

    const ALGORITHMS: [(&str, &str); 4] = [
        ("D-PSGD", "name = \"dpsgd\""),
        ("MATCHA", "name = \"matcha\""),
        ("AL-DSGD over D-PSGD", "name = \"al-dsgd\""),
        (
            "AL-DSGD over MATCHA, overlap",
            "base = \"matcha\"\noverlap = true",
        ),
    ];

    pub(crate) fn check() {
        let mut table = Table(true);
        for (name, algorithm) in ALGORITHMS {
            let rotating = "momentum = 0.0\ndecay = \"cosine\"\nwarmup_epochs = 0.2\n\
                            statistics = \"averaged\"\n[graph]\ncopies = 3\n";
            let experiment = prepare(&config("resnet20", algorithm, 16, 20, rotating));
            for (kind, options) in [("f32", F32), ("bf16", CudaOptions::default())] {
                let graph = complete(&experiment, &mut fleet(&experiment, options));
                let eager = CudaOptions {
                    eager: true,
                    ..options
                };
                let eager = complete(&experiment, &mut fleet(&experiment, eager));
                let what = format!("{name}, {kind}: replayed = eager, to the bit");
                table.line(&what, "", graph == eager);
                if kind == "f32" {
                    let network = TorchNetwork::new(experiment.network.clone());
                    let model = OnCpu::new(Arc::new(network), experiment.network.input);
                    let mut cpu = experiment.fleet(Arc::new(model));
                    let mut gpu = fleet(&experiment, options);
                    let apart = compare(&experiment, 20, &mut cpu, &mut gpu);
                    let what = format!("{name}: GPU and CPU, 20 rounds, worst loss");
                    table.line(&what, &format!("{:.1e}", apart.loss), apart.loss < 1e-4);
                    let what = format!("{name}: GPU and CPU, 20 rounds, worst change");
                    table.line(&what, &format!("{:.1e}", apart.change), apart.change < 0.05);
                }
            }
        }
        every_algorithm(&mut table);
        guests(&mut table);
        let experiment = prepare(&config("resnet20", "base = \"matcha\"", 16, 20, ""));
        let whole = complete(&experiment, &mut fleet(&experiment, F32));
        for streams in [1, 3] {
            let fewer = CudaOptions {
                streams: Some(streams),
                ..F32
            };
            let found = complete(&experiment, &mut fleet(&experiment, fewer));
            let what = format!("{streams} streams = 8 streams, to the bit");
            table.line(&what, "", found == whole);
        }
        let control = "control: other batches give other losses, the same the same";
        table.line(control, "", batches_take_effect(&experiment));

        let mut witness = Witness {
            stop: Some(7),
            ..Default::default()
        };
        let mut first = fleet(&experiment, F32);
        run(&experiment, &mut first, Progress::start(8), &mut witness).expect("a run");
        let (progress, state) = witness.kept.take().expect("a stop");
        let mut second = fleet(&experiment, F32);
        second.restore(&state).expect("a state that fits");
        let mut rest = Witness::default();
        run(&experiment, &mut second, progress, &mut rest).expect("a run");
        let same = second.state() == whole.1 && rest.losses[..] == whole.0[7..];
        table.line("stopped and resumed = never stopped, to the bit", "", same);
        shared_engine(&mut table);
        peeking(&mut table);
        too_large(&mut table);
        if !table.0 {
            std::process::exit(1);
        }
    }

    /// Runs that share one engine, one of which diverges, beside the same apart.
    fn shared_engine(table: &mut Table) {
        let experiments: Vec<Experiment> = [
            ("name = \"dpsgd\"", ""),
            ("base = \"choco\"", "seed"),
            ("name = \"all-reduce\"", "diverges"),
            ("name = \"d2\"", ""),
        ]
        .map(|(algorithm, what)| {
            let text = config("resnet20", algorithm, 16, 20, "statistics = \"averaged\"\n");
            let text = match what {
                "diverges" => text.replace("rate = 0.01", "rate = 1e9"),
                "seed" => format!("seed = 7\n{text}"),
                _ => text,
            };
            prepare(&text)
        })
        .into_iter()
        .collect();
        let all: Vec<&Experiment> = experiments.iter().collect();
        let crew = Crew::together(&all).expect("what can share an engine");
        let network = TorchNetwork::new(crew.network.clone());
        let mut engine = CudaFleet::new(&crew, &network, F32).expect("a fleet");
        let (owner, shares) = share(&all, &engine.layout().clone());
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = all
                .iter()
                .zip(shares)
                .map(|(experiment, mut share)| {
                    scope.spawn(move || complete(experiment, &mut share))
                })
                .collect();
            owner.serve(&mut engine);
            threads
                .into_iter()
                .map(|t| t.join().expect("a run"))
                .collect()
        });
        drop(engine);
        for (experiment, (losses, state)) in all.iter().zip(found) {
            let (known, expected) = complete(experiment, &mut fleet(experiment, F32));
            let bits = |state: &State| -> Vec<u32> {
                state
                    .iter()
                    .flat_map(|(_, array)| array.iter().map(|x| x.to_bits()))
                    .collect()
            };
            let losses_of = |losses: &[Vec<f64>]| -> Vec<u64> {
                losses.iter().flatten().map(|x| x.to_bits()).collect()
            };
            // A run that diverged has models of the round before, and statistics that went on.
            let diverged = losses.len() < 20;
            let same = losses_of(&losses) == losses_of(&known)
                && (diverged || bits(&state) == bits(&expected));
            let end = if diverged { " (diverged)" } else { "" };
            let what = format!(
                "{}{end}: together = apart, to the bit",
                experiment.algorithm_name()
            );
            table.line(&what, "", same);
        }
    }

    /// A network that reads a value back, which no recording can have.
    struct Peeking(TorchNetwork);
    struct PeekingBound(Box<dyn BoundModel>);

    impl TorchModel for Peeking {
        fn layout(&self) -> &upwash::model::Layout {
            self.0.layout()
        }
        fn start(&self, seed: u64, worker: u64) -> Vec<f32> {
            TorchModel::start(&self.0, seed, worker)
        }
        fn start_statistics(&self) -> Vec<f32> {
            TorchModel::start_statistics(&self.0)
        }
        fn bind(&self, parameters: &[Tensor], statistics: &[Tensor]) -> Box<dyn BoundModel> {
            Box::new(PeekingBound(self.0.bind(parameters, statistics)))
        }
    }

    impl BoundModel for PeekingBound {
        fn leaves(&self) -> &[Tensor] {
            self.0.leaves()
        }
        fn train(&self, images: Tensor) -> Tensor {
            let logits = self.0.train(images);
            std::hint::black_box(logits.sum(tch::Kind::Float).double_value(&[]));
            logits
        }
        fn score(&self, images: Tensor) -> Tensor {
            self.0.score(images)
        }
        fn batch_statistics(&self, images: Tensor) -> Vec<Tensor> {
            self.0.batch_statistics(images)
        }
    }

    /// What cannot be recorded is launched anew, and says so.
    fn peeking(table: &mut Table) {
        let experiment = prepare(&config("resnet20", "name = \"dpsgd\"", 16, 10, ""));
        let network = TorchNetwork::new(experiment.network.clone());
        let crew = Crew::of(&experiment);
        let made = CudaFleet::new(&crew, &Peeking(network), F32);
        let mut engine = made.expect("a fleet without a graph");
        let said = engine
            .notice()
            .is_some_and(|notice| notice.contains("cannot be recorded"));
        println!("    {}", engine.notice().unwrap_or("no notice"));
        let found = complete(&experiment, &mut engine);
        let known = complete(&experiment, &mut fleet(&experiment, F32));
        let what = "a network that reads values back: launched anew, the same bits";
        table.line(what, "", said && found == known);
    }

    /// What does not fit is refused, and says what would; and that does.
    fn too_large(table: &mut Table) {
        let large = prepare(&config("resnet50", "name = \"dpsgd\"", 640, 1, ""));
        let network = TorchNetwork::new(large.network.clone());
        let error = CudaFleet::new(&Crew::of(&large), &network, F32).err();
        let error = error.map_or("it fits".to_string(), |error| error.to_string());
        println!("    {error}");
        table.line(
            "too much for the memory: what fits is named",
            "",
            error.contains("--streams"),
        );
        // And what was named does fit.
        let fits = error.split("--streams ").nth(1).and_then(|rest| {
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        });
        if let Some(streams) = fits {
            let options = CudaOptions {
                streams: Some(streams),
                ..F32
            };
            let again = CudaFleet::new(&Crew::of(&large), &network, options).is_ok();
            table.line(&format!("--streams {streams} fits"), "", again);
        }
    }

    /// Memory as it is predicted and as it is.
    pub(crate) fn memory() {
        if std::env::var_os("UPWASH_MEMORY_CASE").is_none() {
            println!(
                "model          workers streams batch precision  used GiB described     tried  described  tried"
            );
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
                 [graph]\ntopology = \"ring:{workers}\"\n[training]\nepochs = 1\nbatch = {batch}\n"
            );
            let experiment = prepare(&text);
            let options = CudaOptions { streams, ..options };
            let crew = Crew::of(&experiment);
            let predicted = Needs::of(&crew, options).total() as f64;
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
            let tried = Needs::measured(&crew, &network, options).expect("two workers");
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

    /// GPU and CPU score the same models alike.
    pub(crate) fn scores() {
        let mut table = Table(true);
        for model in ["resnet20", "thin-resnet50"] {
            let experiment = prepare(&config(model, "name = \"dpsgd\"", 16, 20, ""));
            let mut gpu = fleet(&experiment, F32);
            complete(&experiment, &mut gpu);
            let network = TorchNetwork::new(experiment.network.clone());
            let model_on_cpu = OnCpu::new(Arc::new(network), experiment.network.input);
            let mut cpu = experiment.fleet(Arc::new(model_on_cpu));
            cpu.restore(&gpu.state()).expect("a state that fits");
            let (a, b) = (cpu.score(3, Part::Test), gpu.score(3, Part::Test));
            let apart = (a.loss / b.loss - 1.0).abs();
            let alike = apart < 1e-4 && a.correct.abs_diff(b.correct) <= 1;
            let what = format!(
                "{model}: a model is scored alike, {} and {} right",
                a.correct, b.correct
            );
            table.line(&what, &format!("{apart:.1e}"), alike);
        }
        if !table.0 {
            std::process::exit(1);
        }
    }

    /// Every algorithm on the small CNN, GPU and CPU side by side. Without rounds, left to themselves.
    fn every_algorithm(table: &mut Table) {
        let mut options: Vec<String> = Registry::standard()
            .iter()
            .map(|known| format!("name = \"{}\"", known.name))
            .collect();
        let compressors = ["random-k", "sign", "eight-bit"];
        options
            .extend(compressors.map(|kind| format!("name = \"choco\"\ncompressor = \"{kind}\"")));
        options.push("name = \"slowmo\"\nbase = \"d2\"\nslow_period = 3".into());
        for algorithm in options {
            let centred = ["easgd", "parameter-server", "downpour"];
            let star = centred.iter().any(|name| algorithm.contains(name));
            let graph = if star {
                "[graph]\ntopology = \"star:9\"\n"
            } else {
                ""
            };
            let more = format!("momentum = 0.9\n{graph}");
            let experiment = prepare(&config("cnn", &algorithm, 16, 20, &more));
            let network = TorchNetwork::new(experiment.network.clone());
            let model = OnCpu::new(Arc::new(network), experiment.network.input);
            let mut cpu = experiment.fleet(Arc::new(model));
            let mut gpu = fleet(&experiment, F32);
            let apart = if experiment.method.synchronous().is_some() {
                let apart = compare(&experiment, 20, &mut cpu, &mut gpu);
                apart.loss.max(apart.change)
            } else {
                let (cpu, gpu) = (
                    complete(&experiment, &mut cpu),
                    complete(&experiment, &mut gpu),
                );
                let losses = cpu.0.iter().flatten().zip(gpu.0.iter().flatten());
                let both = losses.filter(|(a, _)| !a.is_nan());
                both.map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
            };
            let what = format!("{}: GPU and CPU, small CNN", experiment.algorithm_name());
            // Left to themselves they drift apart: see `compare`.
            let most = if experiment.method.synchronous().is_some() {
                1e-3
            } else {
                1e-2
            };
            table.line(&what, &format!("{apart:.1e}"), apart < most);
        }
    }

    /// What arrives from other processes counts as what is here: the first four of eight workers with the
    /// others as guests.
    fn guests(table: &mut Table) {
        let more = "statistics = \"averaged\"\n";
        let experiment = prepare(&config("resnet20", "name = \"dpsgd\"", 16, 20, more));
        let mut whole = fleet(&experiment, F32);
        let four: Vec<usize> = (0..4).collect();
        let network = TorchNetwork::new(experiment.network.clone());
        let crew = Crew::of(&experiment).only(&four);
        let mut half = CudaFleet::new(&crew, &network, F32).expect("a fleet");
        whole.step(&turns(8, 3));
        half.step(&turns(4, 3));
        let parts = parts_of(&Dpsgd::default(), &experiment);
        let terms = Terms::default();
        let message = algorithm::Message::stepped();
        let visitors: Vec<Guest> = (4..8)
            .map(|worker| Guest {
                messages: vec![whole.outgoing(worker, &message, terms).into()],
            })
            .collect();
        let statistics = (4..8).map(|worker| whole.statistics(worker)).collect();
        let mean: Vec<Vec<(usize, f64)>> = vec![(0..8).map(|i| (i, 0.125)).collect(); 8];
        half.mix_statistics(&mean[..4], statistics);
        half.exchange_with(&parts[..4], visitors, terms);
        whole.mix_statistics(&mean, vec![]);
        whole.exchange(&parts, terms);
        let (whole, half) = (whole.state(), half.state());
        let mut worst = 0.0f32;
        for ((_, all), (_, some)) in whole.iter().zip(&half) {
            let pairs = some.iter().zip(all);
            worst = pairs.map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
        }
        let what = "models and statistics of other processes are mixed as those here";
        table.line(what, &format!("{worst:.1e}"), worst < 1e-6);
    }

    /// Everyone's turn, with a rate that changes nothing.
    fn turns(workers: usize, batch: u64) -> Vec<Option<Turn>> {
        vec![Some(Turn { batch, rate: 0.0 }); workers]
    }

    /// An exchange with the neighbours of round 0.
    fn parts_of(algorithm: &dyn Algorithm, experiment: &Experiment) -> Vec<algorithm::Part> {
        let up = experiment.schedule.round(0);
        let report = |i: usize| Report {
            loss: Some(i as f64),
            degree: up.degree(i),
            number: 1.0,
        };
        let reports: Vec<Report> = (0..experiment.workers()).map(report).collect();
        Exchange::Neighbours.parts(algorithm, &Setting::new(&up, 0.1), &reports)
    }

    /// Whether a capture takes new inputs: with stale ones, rounds 0 and 1 would have one loss.
    fn batches_take_effect(experiment: &Experiment) -> bool {
        let mut engine = fleet(experiment, F32);
        let mut once = |batch| {
            let scores = engine.step(&turns(8, batch));
            let losses: Vec<f64> = scores.iter().flatten().map(|s| s.loss).collect();
            let alone = LocalSgd { period: u64::MAX };
            engine.exchange(&parts_of(&alone, experiment), Terms::default());
            losses
        };
        let (first, second, again) = (once(0), once(1), once(0));
        first != second && first == again
    }

    /// What a program in another language needs for the same 20 rounds.
    pub(crate) fn export(folder: &str) {
        std::fs::create_dir_all(folder).expect("a folder");
        let path = |name: &str| std::path::Path::new(folder).join(name);
        let floats = |name: &str, numbers: &[f32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            std::fs::write(path(name), bytes).expect("a file");
        };
        for (name, algorithm) in [
            ("dpsgd", "name = \"dpsgd\""),
            ("al-dsgd", "name = \"al-dsgd\""),
        ] {
            let experiment = prepare(&config("resnet20", algorithm, 16, 20, "momentum = 0.0\n"));
            let mut engine = fleet(&experiment, F32);
            floats("models.bin", &engine.state()[0].1);
            let (mut pixels, mut labels) = (Vec::new(), Vec::new());
            for round in 0..20 {
                for worker in 0..8 {
                    let batch = experiment.sampler.batch(&experiment.data, worker, round);
                    pixels.extend(batch.pixels);
                    labels.extend(batch.labels);
                }
            }
            floats("pixels.bin", &pixels);
            std::fs::write(path("labels.bin"), labels).expect("a file");
            let mut exporter = Exporter::default();
            run(&experiment, &mut engine, Progress::start(8), &mut exporter).expect("a run");
            floats(&format!("{name}-models.bin"), &exporter.models);
            floats(&format!("{name}-losses.bin"), &exporter.losses);
        }
    }

    /// Everyone's losses in every round, and all models after it.
    #[derive(Default)]
    struct Exporter {
        losses: Vec<f32>,
        models: Vec<f32>,
    }

    impl Observer for Exporter {
        fn observe(&mut self, event: &Event) -> Next {
            if let Event::Round { losses, .. } = event {
                self.losses.extend(losses.iter().map(|&loss| loss as f32));
            }
            Next::Continue
        }

        fn between_rounds(&mut self, _: u64, moment: &mut dyn FnMut() -> Moment) -> Next {
            self.models.extend(&moment().1[0].1);
            Next::Continue
        }
    }

    /// Milliseconds of a round in a whole run, after the first 20.
    fn round_time(experiment: &Experiment, engine: &mut CudaFleet) -> f64 {
        let mut times = Vec::new();
        let mut clock = |event: &Event| {
            if let Event::Round { .. } = event {
                times.push(Instant::now());
            }
            Next::Continue
        };
        let start = Progress::start(experiment.workers());
        run(experiment, engine, start, &mut clock).expect("a run");
        let rounds = times.len() - 21;
        (times[times.len() - 1] - times[20]).as_secs_f64() * 1e3 / rounds as f64
    }

    pub(crate) fn speed() {
        for (model, batch, rounds) in [
            ("resnet20", 16, 420),
            ("thin-resnet50", 16, 320),
            ("thin-resnet50", 128, 120),
            ("resnet50", 128, 60),
        ] {
            let momentum = "momentum = 0.9\n";
            let experiment = prepare(&config(
                model,
                "name = \"al-dsgd\"",
                batch,
                rounds,
                momentum,
            ));
            let began = Instant::now();
            let mut engine = fleet(&experiment, CudaOptions::default());
            let prepared = began.elapsed().as_secs_f64();
            let whole = round_time(&experiment, &mut engine);
            let memory = engine.memory().expect("memory").peak as f64 / (1u64 << 30) as f64;
            println!(
                "{model}, batch {batch}: {whole:.3} ms a round, {:.0} images/s; prepared in \
                 {prepared:.1} s, {memory:.1} GiB",
                8e3 * batch as f64 / whole,
            );
            parts(&experiment, &mut engine);
        }
        let (batch, workers) = (16, 64);
        let images = workers * batch * 120;
        let config = format!(
            "model = \"thin-resnet50\"\n[data]\n\
             name = \"synthetic:shape=3x32x32,test=500,train={images}\"\npartition = \"iid\"\n[graph]\n\
             topology = \"torus:8x8\"\n[training]\nepochs = 1\nbatch = {batch}\n"
        );
        let experiment = prepare(&config);
        let mut engine = fleet(&experiment, CudaOptions::default());
        let whole = round_time(&experiment, &mut engine);
        println!("thin-resnet50, batch {batch}, {workers} workers: {whole:.3} ms a round");
    }

    /// Where a round's time goes, and how fast models are scored.
    fn parts(experiment: &Experiment, engine: &mut CudaFleet) {
        const TIMES: usize = 20;
        let time = |work: &mut dyn FnMut()| {
            work();
            let began = Instant::now();
            (0..TIMES).for_each(|_| work());
            began.elapsed().as_secs_f64() * 1e3 / TIMES as f64
        };
        let plans = parts_of(&Dpsgd::default(), experiment);
        let everyone: Vec<usize> = (0..8).collect();
        // Everything is prepared ahead; the losses are read in every round, or once in twenty.
        let read = time(&mut || {
            for round in 0..TIMES as u64 {
                drop(engine.step(&turns(8, round)));
                engine.exchange(&plans, Terms::default());
            }
        }) / TIMES as f64;
        let unread = time(&mut || {
            for round in 0..TIMES as u64 {
                engine.launch(&turns(8, round));
                engine.exchange(&plans, Terms::default());
            }
            engine.losses();
        }) / TIMES as f64;
        let mixings = time(&mut || {
            for _ in 0..TIMES {
                engine.wait_with(0.0);
                engine.exchange(&plans, Terms::default());
            }
            engine.consensus_distance(&everyone);
        });
        let waiting = time(&mut || {
            engine.consensus_distance(&everyone);
        });
        let mut images = 0;
        let scoring = time(&mut || {
            let score = |worker| engine.score(worker, Part::Share).images;
            images = (0..8).map(score).sum();
        });
        println!(
            "    losses read {read:.3} ms, not read {unread:.3} ms ({:+.1} %); a step with its mixing \
             {:.3} ms; scoring {:.0} images/s",
            100.0 * (read / unread - 1.0),
            (mixings - waiting) / TIMES as f64,
            1e3 * images as f64 / scoring
        );
    }
}
