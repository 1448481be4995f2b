//! Compares three failure detectors on the same schedules: the timeout of Upwash's peers (nothing received for
//! `failure_timeout_seconds`), phi accrual as in chitchat 0.13 (its detector is private; this is its formula), and SWIM
//! (foca 2.0 with its settings for local networks). Eight processes, of which process 0 dies silently after 60 seconds.
//!
//! `cargo run --manifest-path crates/upwash-peers/benches/detectors/Cargo.toml`

use foca::{Config, Foca, Identity, Notification, PostcardCodec, Runtime, Timer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

const PROCESSES: usize = 8;
const DEATH: f64 = 60.0;
const END: f64 = 120.0;
const HEARTBEAT: f64 = 0.5;

/// What disturbs the processes.
#[derive(Clone, Copy)]
struct Schedule {
    name: &'static str,
    /// The mean delay of a message, in seconds.
    delay: f64,
    /// How often a process stalls, in seconds, and for how long at most. A stalled process neither sends nor receives.
    stall_every: f64,
    stall: f64,
}

const SCHEDULES: [Schedule; 4] = [
    Schedule { name: "quiet", delay: 0.002, stall_every: 1e9, stall: 0.0 },
    Schedule { name: "slow network", delay: 0.3, stall_every: 1e9, stall: 0.0 },
    Schedule { name: "stalls up to 2 s", delay: 0.002, stall_every: 10.0, stall: 2.0 },
    Schedule { name: "stalls up to 5 s", delay: 0.002, stall_every: 20.0, stall: 5.0 },
];

/// One run: when each process stalls.
struct World {
    schedule: Schedule,
    random: StdRng,
    stalls: Vec<Vec<(f64, f64)>>,
}

impl World {
    fn new(schedule: Schedule, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut stalls = vec![vec![]; PROCESSES];
        for stalls in &mut stalls {
            let mut at = schedule.stall_every * random.random::<f64>();
            while at < END {
                let length = schedule.stall * random.random::<f64>();
                stalls.push((at, at + length));
                at += length + 2.0 * schedule.stall_every * random.random::<f64>();
            }
        }
        Self { schedule, random, stalls }
    }

    /// When a process can handle something that happens at this time; `None` if it is dead by then.
    fn handled(&self, process: usize, time: f64) -> Option<f64> {
        let stall = self.stalls[process].iter().find(|(from, to)| (*from..*to).contains(&time));
        let time = stall.map_or(time, |stall| stall.1);
        (process != 0 || time < DEATH).then_some(time)
    }

    fn delay(&mut self) -> f64 {
        -self.schedule.delay * (1.0 - self.random.random::<f64>()).ln()
    }

    /// The times at which heartbeats of one process arrive at another, over a connection that keeps their order.
    fn heartbeats(&mut self, from: usize, to: usize) -> Vec<f64> {
        let (mut sent, mut arrivals, mut last) = (0.0, vec![], 0.0f64);
        while sent < END {
            let Some(at) = self.handled(from, sent) else { break };
            last = last.max(at + self.delay());
            arrivals.extend(self.handled(to, last));
            sent = at + HEARTBEAT;
        }
        arrivals
    }
}

/// False alarms, and the times from death to detection.
#[derive(Default)]
struct Outcome {
    false_alarms: u64,
    detection: Vec<f64>,
    undetected: u64,
}

/// A detector that judges the gaps between heartbeats: `timeout` gives how long a gap may be after these arrivals.
fn gaps(world: &mut World, outcome: &mut Outcome, timeout: impl Fn(&[f64]) -> f64) {
    for from in 0..PROCESSES {
        for to in (1..PROCESSES).filter(|to| *to != from) {
            let arrivals = world.heartbeats(from, to);
            // A process that has stalled itself first handles what has arrived.
            let gap_end = |index: usize| arrivals.get(index + 1).copied().unwrap_or(END);
            for index in 8..arrivals.len() {
                let allowed = timeout(&arrivals[index.saturating_sub(1000)..=index]);
                let stalled = |time: f64| world.handled(to, time).unwrap_or(time);
                let alarm = stalled(arrivals[index] + allowed);
                if alarm >= gap_end(index) {
                    continue;
                }
                match from == 0 && index + 1 == arrivals.len() {
                    true => outcome.detection.push(alarm - DEATH),
                    false if index + 1 < arrivals.len() => outcome.false_alarms += 1,
                    false => {}
                }
            }
        }
    }
}

/// The formula of chitchat: phi is the time since the last heartbeat over the mean interval, which starts at 5 seconds
/// with the weight of 5 intervals; a process is dead at phi 8.
fn phi_timeout(arrivals: &[f64]) -> f64 {
    let intervals = arrivals.windows(2).map(|pair| pair[1] - pair[0]).filter(|interval| *interval < 10.0);
    let (count, sum) = intervals.fold((0.0, 0.0), |(count, sum), interval| (count + 1.0, sum + interval));
    8.0 * (sum + 5.0 * 5.0) / (count + 5.0)
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Id(u8, u32);

impl Identity for Id {
    type Addr = u8;

    fn renew(&self) -> Option<Self> {
        Some(Self(self.0, self.1 + 1))
    }

    fn addr(&self) -> u8 {
        self.0
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        self.1 > other.1
    }
}

enum Happening {
    Data(Vec<u8>),
    Timer(Timer<Id>),
}

/// What will happen, in order.
#[derive(Default)]
struct Queue {
    events: BTreeMap<(u64, u64), (usize, Happening)>,
    serial: u64,
}

impl Queue {
    fn put(&mut self, time: f64, process: usize, happening: Happening) {
        self.serial += 1;
        self.events.insert(((time * 1e6) as u64, self.serial), (process, happening));
    }
}

/// What a process of foca asks for.
#[derive(Default)]
struct Requests {
    sent: Vec<(Id, Vec<u8>)>,
    timers: Vec<(Timer<Id>, Duration)>,
    down: Vec<u8>,
}

impl Runtime<Id> for &mut Requests {
    fn notify(&mut self, notification: Notification<'_, Id>) {
        if let Notification::MemberDown(id) = notification {
            self.down.push(id.0);
        }
    }

    fn send_to(&mut self, to: Id, data: &[u8]) {
        self.sent.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Id>, after: Duration) {
        self.timers.push((event, after));
    }
}

fn swim(world: &mut World, outcome: &mut Outcome, seed: u64) {
    let config = Config::new_lan(std::num::NonZeroU32::new(PROCESSES as u32).expect("not zero"));
    let process = |id: u8| {
        let random = StdRng::seed_from_u64(seed * 100 + u64::from(id));
        Foca::new(Id(id, 0), config.clone(), random, PostcardCodec)
    };
    let mut processes: Vec<_> = (0..PROCESSES as u8).map(process).collect();
    let mut queue = Queue::default();
    let mut detected = [false; PROCESSES];
    let mut handle = |world: &mut World, queue: &mut Queue, now: f64, own: usize, requests: Requests| {
        for (to, data) in requests.sent {
            let arrival = now + world.delay();
            queue.put(arrival, usize::from(to.0), Happening::Data(data));
        }
        for (timer, after) in requests.timers {
            queue.put(now + after.as_secs_f64(), own, Happening::Timer(timer));
        }
        for down in requests.down {
            match down == 0 && now >= DEATH {
                true if !std::mem::replace(&mut detected[own], true) => outcome.detection.push(now - DEATH),
                true => {}
                false => outcome.false_alarms += 1,
            }
        }
    };
    for own in 1..PROCESSES {
        let mut requests = Requests::default();
        processes[own].announce(Id(0, 0), &mut requests).expect("announces");
        handle(world, &mut queue, 0.0, own, requests);
    }
    while let Some(((time, _), (own, happening))) = queue.events.pop_first() {
        let now = time as f64 / 1e6;
        if now > END {
            break;
        }
        match world.handled(own, now) {
            None => continue,
            Some(later) if later > now + 1e-6 => {
                queue.put(later, own, happening);
                continue;
            }
            Some(_) => {}
        }
        let mut requests = Requests::default();
        // A process that was declared down may refuse messages until it has a new identity.
        let _ = match happening {
            Happening::Data(data) => processes[own].handle_data(&data, &mut requests),
            Happening::Timer(timer) => processes[own].handle_timer(timer, &mut requests),
        };
        handle(world, &mut queue, now, own, requests);
    }
    outcome.undetected += detected[1..].iter().filter(|detected| !**detected).count() as u64;
}

fn main() {
    const RUNS: u64 = 100;
    println!("{:<18}{:<22}{:>12}{:>10}{:>14}", "schedule", "detector", "median s", "worst s", "false alarms");
    for schedule in SCHEDULES {
        for detector in ["timeout 5 s", "timeout 6 s", "phi accrual 8", "SWIM (foca, LAN)"] {
            let mut outcome = Outcome::default();
            for seed in 0..RUNS {
                let mut world = World::new(schedule, seed);
                match detector {
                    "timeout 5 s" => gaps(&mut world, &mut outcome, |_| 5.0),
                    "timeout 6 s" => gaps(&mut world, &mut outcome, |_| 6.0),
                    "phi accrual 8" => gaps(&mut world, &mut outcome, phi_timeout),
                    _ => swim(&mut world, &mut outcome, seed),
                }
            }
            outcome.detection.sort_by(f64::total_cmp);
            let at = |part: f64| outcome.detection[((outcome.detection.len() - 1) as f64 * part) as usize];
            // Per pair of processes and hour.
            let pair_hours = RUNS as f64 * (PROCESSES * (PROCESSES - 1)) as f64 * END / 3600.0;
            println!(
                "{:<18}{detector:<22}{:>12.1}{:>10.1}{:>14.2}{}",
                schedule.name,
                at(0.5),
                at(1.0),
                outcome.false_alarms as f64 / pair_hours,
                if outcome.undetected > 0 { format!("  ({} undetected)", outcome.undetected) } else { String::new() }
            );
        }
    }
}
