//! Benchmarks of the MPI transport. An AL-DSGD exchange between eight ranks, compared with MPI_Allreduce of the same
//! number of values and with peers/exchange.py: see peers/exchange.sh. A round with and without overlap: see
//! peers/overlap.sh.

#[cfg(not(feature = "mpi"))]
fn main() {
    println!("built without the feature `mpi`: build with `--features mpi`");
}

#[cfg(feature = "mpi")]
fn main() {
    with_mpi::main();
}

#[cfg(feature = "mpi")]
#[allow(unsafe_code)]
mod with_mpi {
    use mpi::ffi;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use upwash::algorithm::{Assignment, Outgoing, RowPlan, Vector, WorkerStats};
    use upwash::config::Config;
    use upwash::data::Batch;
    use upwash::engine::Score;
    use upwash::engine::{CpuEngine, Model};
    use upwash::engine::{MixOptions, RemoteRow, WorkerVectors, exchange};
    use upwash::experiment::{DataPaths, Experiment};
    use upwash::model::{Layout, Slot};
    use upwash::run::{ControlFlow, Event, Progress, run_with};
    use upwash::transport::{Collectives, Membership, Message, MessageExchange};
    use upwash::{RowIndex, WorkerId};
    use upwash_mpi::Mpi;

    /// A model whose gradient only takes time.
    struct DummyModel {
        layout: Layout,
        work: Work,
    }

    /// What a gradient does.
    #[derive(Clone, Copy)]
    enum Work {
        /// Keeps a core busy with this many units of work.
        Compute(u64),
        /// Sleeps.
        Sleep(Duration),
    }

    impl DummyModel {
        fn new(count: usize, work: Work) -> Self {
            let slot = Slot { name: "values".into(), shape: vec![count], offset: 0 };
            let layout = Layout { parameters: vec![slot], statistics: vec![] };
            Self { layout, work }
        }
    }

    impl Model for DummyModel {
        fn layout(&self) -> &Layout {
            &self.layout
        }
        fn start(&self, _: u64, worker: u64) -> Vec<f32> {
            vec![worker as f32; self.layout.parameter_count()]
        }
        fn start_statistics(&self) -> Vec<f32> {
            vec![]
        }
        fn gradient(&self, _: &[f32], _: &mut [f32], batch: &Batch, _: &mut [f32]) -> Score {
            match self.work {
                Work::Compute(units) => compute(units),
                Work::Sleep(time) => std::thread::sleep(time),
            }
            Score { loss: 1.0, correct: 0, examples: batch.labels.len(), clipped: 0 }
        }
        fn score(&self, _: &[f32], _: &[f32], batch: &Batch) -> Score {
            Score { loss: 1.0, correct: 0, examples: batch.labels.len(), clipped: 0 }
        }
        fn batch_statistics(&self, _: &[f32], _: &Batch) -> Vec<f32> {
            vec![]
        }
    }

    /// Median time of MPI_Allreduce, in milliseconds.
    fn all_reduce(count: usize, times: usize) -> f64 {
        let (values, mut sum) = (vec![1.0f32; count], vec![0.0f32; count]);
        let mut found = Vec::new();
        for _ in 0..times + 2 {
            // SAFETY: no other thread makes MPI calls before the transport starts.
            unsafe { ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD) };
            let began = Instant::now();
            // SAFETY: as above. Both buffers have `count` values, and the call completes before they are dropped.
            unsafe {
                ffi::MPI_Allreduce(
                    values.as_ptr().cast(),
                    sum.as_mut_ptr().cast(),
                    count as i32,
                    ffi::RSMPI_FLOAT,
                    ffi::RSMPI_SUM,
                    ffi::RSMPI_COMM_WORLD,
                );
            }
            found.push(began.elapsed().as_secs_f64() * 1e3);
        }
        median(found.split_off(2))
    }

    fn median(mut times: Vec<f64>) -> f64 {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    fn prepare(graph: &str, algorithm: &str, rounds: usize) -> Experiment {
        let workers = if graph == "paper:L1" { 8 } else { 2 };
        let examples = workers * rounds;
        let text = format!(
            "[data]\nname = \"synthetic:shape=1x1x1,train={examples},test=1\"\npartition = \"iid\"\n[graph]\n\
             topology = \"{graph}\"\n[algorithm]\n{algorithm}\n[training]\nepochs = 1\nbatch_size = 1\nmomentum = 0.0\n"
        );
        let config = Config::parse(&text, &[]).expect("valid configuration");
        Experiment::prepare(config, &DataPaths::default()).expect("valid experiment")
    }

    /// Median time of an exchange, in milliseconds: from the messages in the memory of all ranks to the mixed models in
    /// the memory of all ranks, as an all-reduce goes from buffer to buffer.
    fn exchange_alone(transport: &mut Mpi, experiment: &Experiment, count: usize) -> f64 {
        let worker = transport.placement().this();
        let neighbors: Vec<usize> = experiment.graph.neighbors(worker).to_vec();
        let expected: Vec<WorkerId> = neighbors.iter().copied().map(WorkerId).collect();
        let weight = 1.0 / (neighbors.len() + 1) as f64;
        let (mut x, u) = (vec![worker as f32; count], vec![0.0f32; count]);
        let mut weights = vec![(RowIndex(0), weight)];
        weights.extend((1..=neighbors.len()).map(|row| (RowIndex(row), weight)));
        let content = Outgoing::stepped();
        let mixed = Assignment::mixed(Vector::Model, weights);
        let mut found = Vec::new();
        for round in 0..experiment.rounds() {
            let stats = WorkerStats { loss: Some(1.0), degree: neighbors.len(), scalar: 1.0 };
            let mut values = transport.allocate(count);
            values.copy_from_slice(&x);
            let message = Message {
                from: worker.into(),
                round,
                exchange: 1,
                stats,
                whole: true,
                fresh: false,
                restart: None,
                values,
            };
            transport.may_begin(round, false).expect("round begins");
            // Acts as a barrier: all ranks have their messages.
            transport.sum(0.0).expect("barrier");
            let began = Instant::now();
            let outgoing = vec![(message, neighbors.clone())];
            transport.begin_exchange(outgoing, &expected).expect("sent");
            let messages = transport.finish_exchange(1).expect("received").into_iter();
            let remote = |message: Message| RemoteRow { messages: vec![message.values] };
            let remote_rows: Vec<RemoteRow> = messages.map(remote).collect();
            let own = RowPlan { row: RowIndex(0), messages: vec![content.clone()], plan: mixed.clone().into() };
            let mut parts = vec![own];
            parts.extend((1..).zip(&remote_rows).map(|(row, remote)| remote.row_plan(RowIndex(row))));
            let row = WorkerVectors { model: &mut x, step: &u, state_vectors: vec![] };
            exchange(vec![row], &remote_rows, &parts, MixOptions::default());
            drop(remote_rows);
            found.push(began.elapsed().as_secs_f64() * 1e3);
        }
        median(found.split_off(2))
    }

    /// Median time of a round, in milliseconds.
    fn rounds(transport: &mut Mpi, experiment: &Experiment, model: &Arc<DummyModel>) -> f64 {
        let own: Vec<WorkerId> = transport.placement().own().collect();
        let spec = experiment.engine_spec().only(&own);
        let mut engine = CpuEngine::new(Arc::clone(model) as Arc<dyn Model>, &spec);
        let mut ends = Vec::new();
        let mut clock = |event: &Event| {
            if let Event::Round { .. } = event {
                ends.push(Instant::now());
            }
            ControlFlow::Continue
        };
        let start = Progress::start(experiment.workers());
        run_with(experiment, &mut engine, transport, start, &mut clock).expect("run completes");
        let times = ends.windows(2).map(|two| two[1] - two[0]).skip(2);
        median(times.map(|time| time.as_secs_f64() * 1e3).collect())
    }

    /// Times rounds of two ranks over a network, with a gradient that takes as long as an exchange.
    fn overlap(rank: upwash_mpi::Rank, count: usize, timeout: Duration) {
        let mut transport = Mpi::new(rank, 2, timeout).expect("transport starts");
        let timed = |transport: &mut Mpi, algorithm: &str, work: Work| {
            let experiment = prepare("path:2", algorithm, 20);
            let model = Arc::new(DummyModel::new(count, work));
            let own = rounds(transport, &experiment, &model);
            // Both ranks use the mean of their times.
            transport.sum(own).expect("sum").expect("MPI has sums") / 2.0
        };
        // Measures the exchange as it occurs in rounds, with pauses in which the network is idle.
        let pause = 200.0;
        let sleep = Work::Sleep(Duration::from_millis(pause as u64));
        let exchange = timed(&mut transport, "name = \"dpsgd\"", sleep) - pause;
        let probe = 1000;
        let began = Instant::now();
        compute(probe);
        let unit = began.elapsed().as_secs_f64() * 1e3 / probe as f64;
        let work = Work::Compute((exchange / unit) as u64);
        let alone = timed(&mut transport, "name = \"local-sgd\"\nperiod = 1000000", work);
        if rank.number == 0 {
            println!("{count} values: exchange alone {exchange:.0} ms, gradient alone {alone:.0} ms");
        }
        for (name, algorithm) in [
            ("D-PSGD", "name = \"dpsgd\""),
            ("AL-DSGD", "name = \"al-dsgd\""),
            ("AL-DSGD, overlap", "name = \"al-dsgd\"\noverlap = true"),
        ] {
            let time = timed(&mut transport, algorithm, work);
            if rank.number == 0 {
                let ratio = time / alone;
                println!("{name:<18} {time:>6.0} ms per round, {ratio:.2} times the gradient");
            }
        }
    }

    /// Keeps a core busy with this many units of work.
    fn compute(units: u64) {
        let mut sum = 1.0f32;
        for _ in 0..units {
            for _ in 0..10_000 {
                sum = std::hint::black_box(sum * 1.000_001);
            }
        }
        std::hint::black_box(sum);
    }

    pub(crate) fn main() {
        let rank = upwash_mpi::join().expect("mpirun started this process");
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let number = |argument: &String| argument.parse::<usize>().expect("arguments are integers");
        let is_first = rank.number == 0;
        let timeout = Duration::from_secs(120);
        rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("thread pool starts");
        if let [_, count] = arguments.as_slice()
            && arguments[0] == "overlap"
        {
            overlap(rank, number(count), timeout);
            return;
        }
        let sizes = match arguments.as_slice() {
            [count, times] => vec![(number(count), number(times))],
            _ => vec![(500_000, 60), (25_000_000, 10)],
        };
        let reduced = sizes.clone().into_iter();
        let reduced: Vec<f64> = reduced.map(|(count, times)| all_reduce(count, times)).collect();
        let mut transport = Mpi::new(rank, 8, timeout).expect("transport starts");
        for ((count, times), reduced) in sizes.into_iter().zip(reduced) {
            let model = Arc::new(DummyModel::new(count, Work::Compute(0)));
            let experiment = prepare("paper:L1", "name = \"al-dsgd\"", times);
            let time = exchange_alone(&mut transport, &experiment, count);
            let round = rounds(&mut transport, &experiment, &model);
            if is_first {
                println!(
                    "{count} values: AL-DSGD's exchange {time:.1} ms, a whole round {round:.1} ms; MPI_Allreduce \
                     {reduced:.1} ms: {:.2} and {:.2} times as fast",
                    reduced / time,
                    reduced / round
                );
            }
        }
    }
}
