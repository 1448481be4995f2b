//! Links that reach the exact average of all workers in a known number of rounds: the Base-(k+1) graph of Takezawa et al.
//! 2023 (Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning via Finite-time
//! Convergence) and the hypercube with one peer.

use super::{Rule, Schedule, ScheduleError};
use crate::{Edge, Mixing};

impl Schedule {
    /// The Base-(k+1) graph, in which each worker has at most k = `peers` links in a round: a cycle of rounds whose product is
    /// the exact average, for every number of workers, after some 2 log n / log (k + 1) rounds.
    ///
    /// # Panics
    /// If there are no workers, or no peers.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::base(8, 1).rounds_to_consensus(), Some(3));
    /// assert_eq!(Schedule::base(7, 1).rounds_to_consensus(), Some(5));
    /// ```
    pub fn base(nodes: usize, peers: usize) -> Self {
        assert!(nodes > 0 && peers > 0, "no workers, or no peers");
        let rounds = base(nodes, peers).into_iter();
        Self::cycle(nodes, rounds.map(|links| pattern(nodes, links)))
    }

    /// The one-peer hypercube: in round k, workers whose numbers differ in bit k take the mean of their models. log2 n
    /// rounds give the exact average.
    ///
    /// ```
    /// # use upwash_topology::{Schedule, ScheduleError};
    /// assert_eq!(Schedule::hypercube(8)?.round(2).links()[0], (0, 4));
    /// assert_eq!(Schedule::hypercube(6).unwrap_err(), ScheduleError::NotPowerOfTwo(6));
    /// # Ok::<(), ScheduleError>(())
    /// ```
    pub fn hypercube(nodes: usize) -> Result<Self, ScheduleError> {
        if !nodes.is_power_of_two() {
            return Err(ScheduleError::NotPowerOfTwo(nodes));
        }
        let rounds = hypercube(nodes).into_iter();
        Ok(Self::cycle(nodes, rounds.map(|links| pattern(nodes, links))))
    }

    /// The number of rounds, from the first one on, after which all workers have the exact average. `None` if a cycle of
    /// this schedule does not lead to it, or if the schedule has random draws.
    ///
    /// ```
    /// # use upwash_topology::Schedule;
    /// assert_eq!(Schedule::one_peer_exponential(8).rounds_to_consensus(), Some(3));
    /// assert_eq!(Schedule::one_peer_exponential(6).rounds_to_consensus(), None);
    /// ```
    pub fn rounds_to_consensus(&self) -> Option<usize> {
        let Rule::Cycle(patterns) = &self.rule else { return None };
        let average = 1.0 / self.nodes as f64;
        // Row i of the product of all matrices so far: how much of each worker's value worker i has.
        let mut shares = vec![vec![0.0; self.nodes]; self.nodes];
        (0..self.nodes).for_each(|i| shares[i][i] = 1.0);
        for (round, pattern) in patterns.iter().enumerate() {
            let row = |i: usize| {
                let mut sum = vec![0.0; self.nodes];
                for &(sender, weight) in pattern.mixing.row(i) {
                    sum.iter_mut().zip(&shares[sender]).for_each(|(sum, share)| *sum += weight * share);
                }
                sum
            };
            shares = (0..self.nodes).map(row).collect();
            if shares.iter().flatten().all(|share| (share - average).abs() < 1e-9) {
                return Some(round + 1);
            }
        }
        None
    }
}

/// The links of a round, with their weights.
type Links = Vec<(usize, usize, f64)>;

/// The rounds of the Base-(k+1) graph, in each of which a worker has at most `peers` = k links. Their product is the exact
/// average, for every number of workers.
///
/// Two constructions are possible, and the shorter one is used: that of [`simple`], or, with n = p q where p has only
/// prime factors of at most k + 1 and q has none, p groups of q workers first, and then all groups.
fn base(nodes: usize, peers: usize) -> Vec<Links> {
    let all: Vec<usize> = (0..nodes).collect();
    let whole = simple(&all, peers);
    let smooth: usize = factors(nodes, peers).0.iter().product();
    if smooth == 1 || smooth == nodes {
        return whole;
    }
    let size = nodes / smooth;
    let groups: Vec<Vec<Links>> = all.chunks(size).map(|group| simple(group, peers)).collect();
    let mut rounds = (0..groups[0].len()).map(|round| groups.iter().flat_map(|group| group[round].clone()).collect());
    let mut rounds: Vec<Links> = rounds.by_ref().collect();
    let across: Vec<Vec<Links>> = (0..size)
        .map(|place| hyper(&all.iter().copied().skip(place).step_by(size).collect::<Vec<_>>(), peers))
        .collect();
    rounds.extend((0..across[0].len()).map(|round| across.iter().flat_map(|group| group[round].clone()).collect()));
    if rounds.len() < whole.len() { rounds } else { whole }
}

/// The prime factors of at most k + 1, combined to factors of at most k + 1, and what is left.
fn factors(mut number: usize, peers: usize) -> (Vec<usize>, usize) {
    let mut found: Vec<usize> = Vec::new();
    // Large factors first, because each costs a round. Afterwards only prime factors above k + 1 are left.
    for factor in (2..=peers + 1).rev() {
        while number > 1 && number.is_multiple_of(factor) {
            found.push(factor);
            number /= factor;
        }
    }
    (found, number)
}

/// The hyper-hypercube of workers whose number has only prime factors of at most k + 1: in each round the workers that differ
/// in one digit average.
fn hyper(workers: &[usize], peers: usize) -> Vec<Links> {
    let mut stride = 1;
    let round = |&factor: &usize| {
        let mut links = Links::new();
        for (place, &worker) in workers.iter().enumerate() {
            let digit = place / stride % factor;
            let others = (digit + 1..factor).map(|other| workers[place + (other - digit) * stride]);
            links.extend(others.map(|other| (worker, other, 1.0 / factor as f64)));
        }
        stride *= factor;
        links
    };
    factors(workers.len(), peers).0.iter().map(round).collect()
}

/// The simple Base-(k+1) graph. The leading digit of n in base b = k + 1 gives a b^p workers in blocks of b^p, and the rest.
///
/// The blocks average; then each worker of the rest, with the value x, is linked to one worker of each block, with the
/// average m. With the weight b^p / n on each link, x becomes the average of everybody if x is that of the rest, and the
/// sum in each block moves by the right amount, so that averaging in the blocks finishes them. The rest averages by the
/// same construction, before and after that round.
fn simple(workers: &[usize], peers: usize) -> Vec<Links> {
    let (count, base) = (workers.len(), peers + 1);
    if factors(count, peers).1 == 1 {
        return hyper(workers, peers);
    }
    let block = std::iter::successors(Some(1), |power| Some(power * base)).take_while(|power| *power <= count).last();
    let block = block.unwrap_or(1);
    let leading = count / block * block;
    let (leaders, rest) = workers.split_at(leading);
    let before = hyper(leaders, peers);
    let after: Vec<Vec<Links>> = leaders.chunks(block).map(|block| hyper(block, peers)).collect();
    let own = simple(rest, peers);
    let early = own.len().min(before.len());
    let at = |rounds: &[Links], round: usize| rounds.get(round).cloned().unwrap_or_default();
    let mut rounds: Vec<Links> =
        (0..before.len()).map(|round| [at(&before, round), at(&own[..early], round)].concat()).collect();
    let weight = block as f64 / count as f64;
    let partners = |(place, worker): (usize, &usize)| -> Links {
        leaders.chunks(block).map(|block| (block[place], *worker, weight)).collect()
    };
    rounds.push(rest.iter().enumerate().flat_map(partners).collect());
    let length = after[0].len().max(own.len() - early);
    rounds.extend((0..length).map(|round| {
        let blocks = after.iter().flat_map(|block| at(block, round));
        blocks.chain(at(&own[early..], round)).collect::<Links>()
    }));
    rounds
}

/// The one-peer hypercube: in round k, workers whose numbers differ in bit k average.
fn hypercube(nodes: usize) -> Vec<Links> {
    hyper(&(0..nodes).collect::<Vec<_>>(), 1)
}

/// A round as a schedule has it.
fn pattern(nodes: usize, links: Links) -> (Vec<Edge>, Vec<usize>, Mixing) {
    let mut links: Links = links.into_iter().map(|(u, v, weight)| (u.min(v), u.max(v), weight)).collect();
    links.sort_unstable_by_key(|link| (link.0, link.1));
    let edges = links.iter().map(|link| (link.0, link.1)).collect();
    (edges, vec![], Mixing::symmetric(nodes, links))
}
