//! Random schedules of faults. A seed determines everything.

use super::world::MS;
use std::time::Duration;
use upwash_topology::random::Stream;

/// How a worker misleads others. Everything else that it does is honest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    /// It claims this round everywhere, also in the headers of its messages.
    Rounds(u64),
    /// It claims this round, and all workers as its side, in offers, heartbeats and announcements.
    Announced(u64),
    /// It says that it has finished.
    Goodbye,
    /// It sends many heartbeats.
    Flood,
    /// It requests models all the time.
    Fetch,
}

/// A fault, or its end.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Kill {
        worker: usize,
    },
    Restart {
        worker: usize,
        with_disk: bool,
    },
    Cut {
        from: usize,
        to: usize,
        is_cut: bool,
    },
    /// The round loop of a worker stops for some time, and its heartbeats go on.
    Stuck {
        worker: usize,
        duration: Duration,
    },
    /// Frames take up to this long.
    Delay(Duration),
}

/// The faults of a run, and when they happen.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) faults: Vec<(Duration, Fault)>,
    pub(super) liar: Option<(usize, Lie)>,
    /// Workers that start late.
    pub(super) late: Vec<(usize, Duration)>,
    /// A worker whose models do not arrive.
    pub(super) withheld_models: Option<usize>,
    /// How long each sixteenth of a model takes.
    pub(super) slow_models: Option<Duration>,
    pub(super) delay: Duration,
    pub(super) gradients: Vec<Duration>,
}

impl Schedule {
    /// A run without faults.
    pub(super) fn quiet(seed: u64, workers: usize) -> Self {
        let mut random = Stream::new(seed, "gradient durations", &[]);
        Self {
            seed,
            faults: vec![],
            liar: None,
            late: vec![],
            withheld_models: None,
            slow_models: None,
            delay: 2 * MS,
            gradients: (0..workers).map(|_| MS.mul_f64(4.0 + 8.0 * random.uniform())).collect(),
        }
    }

    /// Random faults in a run of these workers and rounds.
    pub(super) fn random(seed: u64, workers: usize, rounds: u64) -> Self {
        let mut random = Stream::new(seed, "fault schedule", &[]);
        let mut schedule = Self::quiet(seed, workers);
        // A round takes about 15 milliseconds.
        let length = 15.0 * rounds as f64;
        schedule.delay = MS.mul_f64(0.5 + 6.0 * random.uniform());
        let count = 1 + random.below(6);
        for _ in 0..count {
            let at = MS.mul_f64(length * random.uniform());
            let lasting = MS.mul_f64(3000.0 * random.uniform().powi(2) + 20.0);
            let (worker, other) = (random.below(workers), random.below(workers));
            schedule.add(&mut random, at, lasting, worker, other);
        }
        if random.below(4) == 0 {
            let claimed = [0, 1, rounds / 2, rounds - 1, rounds, rounds + 1, 1 << 40][random.below(7)];
            let lies = [Lie::Rounds(claimed), Lie::Announced(claimed), Lie::Goodbye, Lie::Flood, Lie::Fetch];
            schedule.liar = Some((random.below(workers), lies[random.below(5)]));
        }
        if random.below(5) == 0 {
            schedule.late.push((random.below(workers), MS.mul_f64(length * random.uniform())));
        }
        schedule
    }

    fn add(&mut self, random: &mut Stream, at: Duration, lasting: Duration, worker: usize, other: usize) {
        let workers = self.gradients.len();
        let end = at + lasting;
        let mut put = |at: Duration, fault: Fault| self.faults.push((at, fault));
        match random.below(8) {
            0 | 1 => {
                put(at, Fault::Kill { worker });
                let with_disk = random.below(2) == 0;
                put(end, Fault::Restart { worker, with_disk });
            }
            // Killed for good.
            2 => put(at, Fault::Kill { worker }),
            3 if worker != other => {
                for (from, to) in [(worker, other), (other, worker)] {
                    put(at, Fault::Cut { from, to, is_cut: true });
                    put(end, Fault::Cut { from, to, is_cut: false });
                }
            }
            4 if worker != other => {
                put(at, Fault::Cut { from: worker, to: other, is_cut: true });
                put(end, Fault::Cut { from: worker, to: other, is_cut: false });
            }
            5 => {
                // The network splits into two parts.
                let first: Vec<bool> = (0..workers).map(|_| random.below(2) == 0).collect();
                for (from, to) in (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to))) {
                    if first[from] != first[to] {
                        put(at, Fault::Cut { from, to, is_cut: true });
                        put(end, Fault::Cut { from, to, is_cut: false });
                    }
                }
            }
            6 => put(at, Fault::Stuck { worker, duration: lasting }),
            _ => {
                put(at, Fault::Delay(MS.mul_f64(100.0 * random.uniform())));
                put(end, Fault::Delay(2 * MS));
            }
        }
    }
}
