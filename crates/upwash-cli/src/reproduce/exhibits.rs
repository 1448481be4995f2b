//! The paper's tables and figures that can be made anew: which runs each needs, and what it is said to show.

use super::cells::{Algorithm, Cell, Kept, LINKS, PULLS, Task, Variant};

/// A table or a figure.
pub(super) struct Exhibit {
    /// As it is asked for.
    pub(super) name: &'static str,
    /// As it is labelled in the paper's source.
    pub(super) label: &'static str,
    pub(super) caption: &'static str,
    pub(super) columns: Vec<Column>,
    /// Whether there is a row for each worker, or their mean alone.
    pub(super) by_node: bool,
    /// Whether training losses are shown as well.
    pub(super) losses: bool,
    pub(super) claims: Vec<Claim>,
    /// The one variant that it is about, whichever are asked for.
    variant: Option<Variant>,
}

pub(super) struct Column {
    pub(super) title: String,
    pub(super) cell: Cell,
    /// Its column in the paper's numbers, if they are there.
    pub(super) paper: Option<&'static str>,
}

/// What the paper says that can be checked.
pub(super) struct Claim {
    pub(super) sentence: String,
    pub(super) kind: ClaimKind,
}

pub(super) enum ClaimKind {
    /// One has more of something than the other.
    Better {
        measure: Measure,
        one: Cell,
        other: Cell,
    },
    /// This worker's training loss is the highest before the first cut of the rate.
    Slowest { cell: Cell, worker: usize },
    /// These workers are the worst, in every seed.
    Worst {
        cell: Cell,
        workers: &'static [usize],
    },
    /// From the densest to the sparsest graph, one loses less than the other.
    Robust { one: [Cell; 2], other: [Cell; 2] },
}

/// Of a run. Before the first cut of the rate: in the second quarter of the epochs; at the end: in the last twentieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    MeanAccuracy,
    WorstAccuracy,
    /// Of the averaged model.
    AveragedAccuracy,
    /// Training loss, of all and of the worst worker.
    LossBefore,
    WorstLossBefore,
    /// Its largest less its smallest among the workers.
    SpreadBefore,
    SpreadAtEnd,
    /// Epochs until the mean, and the worst worker's, training loss is low.
    EpochsOfMean,
    EpochsOfWorst,
}

impl Measure {
    pub(super) fn more_is_better(self) -> bool {
        matches!(
            self,
            Self::MeanAccuracy | Self::WorstAccuracy | Self::AveragedAccuracy
        )
    }

    /// What it counts, with how many digits, and the smallest difference that means anything.
    pub(super) fn unit(self) -> (&'static str, usize, f64) {
        match self {
            Self::MeanAccuracy | Self::WorstAccuracy | Self::AveragedAccuracy => ("points", 2, 0.0),
            Self::EpochsOfMean | Self::EpochsOfWorst => ("epochs", 1, 1.0),
            _ => ("of loss", 3, 0.0),
        }
    }
}

impl Exhibit {
    fn new(name: &'static str, label: &'static str, caption: &'static str) -> Self {
        Self {
            name,
            label,
            caption,
            columns: vec![],
            by_node: true,
            losses: false,
            claims: vec![],
            variant: None,
        }
    }

    /// Those of the asked variants that it shows.
    pub(super) fn variants<'a>(&'a self, asked: &'a [Variant]) -> &'a [Variant] {
        match &self.variant {
            Some(variant) => std::slice::from_ref(variant),
            None => asked,
        }
    }

    /// All that it shows, each once.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.columns.iter().map(|column| column.cell).collect();
        cells.extend(self.claims.iter().flat_map(Claim::cells));
        cells.sort();
        cells.dedup();
        cells
    }
}

impl Claim {
    /// The experiments that it is about.
    pub(super) fn cells(&self) -> Vec<Cell> {
        match self.kind {
            ClaimKind::Better { one, other, .. } => vec![one, other],
            ClaimKind::Worst { cell, .. } | ClaimKind::Slowest { cell, .. } => vec![cell],
            ClaimKind::Robust { one, other } => [one, other].concat(),
        }
    }
}

use Algorithm::{AlDsgdOverDpsgd, AlDsgdOverMatcha, Dpsgd, Matcha};

/// The graph as it is for baselines, three copies for AL-DSGD: what the paper shows most.
const fn usual(algorithm: Algorithm) -> Cell {
    let copies = match algorithm {
        AlDsgdOverDpsgd | AlDsgdOverMatcha => 3,
        Dpsgd | Matcha => 1,
    };
    Cell::new(algorithm, 13, copies)
}

fn column(cell: Cell, paper: Option<&'static str>) -> Column {
    let mut title = format!("{}, D = {}", cell.algorithm.words(), cell.links);
    if cell.copies > 1 {
        title += &format!(", {} graphs", cell.copies);
    }
    match cell.kept {
        Kept::All => {}
        Kept::Only(part) => title += &format!(", {part} alone"),
        Kept::Nothing => title += ", no pull",
        Kept::Metropolis => title += ", Metropolis weights",
    }
    if cell.task == Task::Cifar100 {
        title += ", CIFAR-100";
    }
    Column { title, cell, paper }
}

/// AL-DSGD beside its baseline.
fn better(one: Cell, other: Cell) -> Vec<Claim> {
    let names = (one.algorithm.words(), other.algorithm.words());
    let data = match one.task {
        Task::Cifar10 => "",
        Task::Cifar100 => " on CIFAR-100",
    };
    let claim = |measure, what: &str| Claim {
        sentence: format!("{} {what} than {}{data}", names.0, names.1),
        kind: ClaimKind::Better {
            measure,
            one,
            other,
        },
    };
    vec![
        claim(Measure::MeanAccuracy, "has a higher mean test accuracy"),
        claim(Measure::WorstAccuracy, "has a better worst worker"),
        claim(Measure::AveragedAccuracy, "has a better averaged model"),
        claim(
            Measure::SpreadBefore,
            "has smaller differences between the workers' losses before the first cut of the rate",
        ),
        claim(
            Measure::SpreadAtEnd,
            "has smaller differences between the workers' losses at the end",
        ),
        claim(
            Measure::LossBefore,
            "converges faster (mean loss before the first cut)",
        ),
        claim(
            Measure::WorstLossBefore,
            "converges faster (worst worker's loss before the first cut)",
        ),
        claim(
            Measure::EpochsOfMean,
            "converges faster (epochs until the mean loss is low)",
        ),
        claim(
            Measure::EpochsOfWorst,
            "converges faster (epochs until the worst worker's loss is low)",
        ),
    ]
}

fn both_tasks(one: Cell, other: Cell, papers: [&'static str; 4]) -> (Vec<Column>, Vec<Claim>) {
    let mut columns = vec![column(other, Some(papers[0])), column(one, Some(papers[1]))];
    let hard = [other, one].map(|cell| cell.on(Task::Cifar100));
    columns.push(column(hard[0], Some(papers[2])));
    columns.push(column(hard[1], Some(papers[3])));
    let mut claims = better(one, other);
    claims.extend(better(hard[1], hard[0]));
    (columns, claims)
}

fn robust(one: Algorithm, copies: u8, other: Algorithm) -> Claim {
    let ends = |algorithm, copies| [13, 5].map(|links| Cell::new(algorithm, links, copies));
    Claim {
        sentence: format!(
            "{} loses less accuracy than {} from D = 13 to D = 5, where workers 4 and 7 have no link at all",
            one.words(),
            other.words()
        ),
        kind: ClaimKind::Robust {
            one: ends(one, copies),
            other: ends(other, 1),
        },
    }
}

/// One algorithm on ever fewer links.
fn degrees(
    name: &'static str,
    label: &'static str,
    caption: &'static str,
    algorithm: Algorithm,
    copies: u8,
    paper: [&'static str; 5],
) -> Exhibit {
    let cell = |links| Cell::new(algorithm, links, copies);
    let columns = LINKS.iter().zip(paper);
    let claims = match algorithm {
        AlDsgdOverDpsgd => vec![robust(algorithm, copies, Dpsgd)],
        AlDsgdOverMatcha => vec![robust(algorithm, copies, Matcha)],
        Dpsgd => vec![low_degree(cell(13))],
        Matcha => vec![],
    };
    Exhibit {
        columns: columns
            .map(|(&links, paper)| column(cell(links), Some(paper)))
            .collect(),
        claims,
        ..Exhibit::new(name, label, caption)
    }
}

fn slowest(cell: Cell) -> Claim {
    Claim {
        sentence: format!(
            "{}: worker 4, of the lowest degree, converges slowest before the first cut of the rate",
            cell.algorithm.words()
        ),
        kind: ClaimKind::Slowest { cell, worker: 4 },
    }
}

fn low_degree(cell: Cell) -> Claim {
    Claim {
        sentence: "D-PSGD: workers 4, of the lowest degree, and 0, its only neighbour, end worse than all others in every seed"
            .into(),
        kind: ClaimKind::Worst {
            cell,
            workers: &[0, 4],
        },
    }
}

/// All there are, in the paper's order.
pub(super) fn all() -> Vec<Exhibit> {
    let mut all = Vec::new();
    all.push(Exhibit {
        columns: vec![
            column(usual(Dpsgd), Some("table1.dpsgd")),
            column(usual(Matcha), Some("table1.matcha")),
        ],
        losses: true,
        claims: vec![
            slowest(usual(Dpsgd)),
            slowest(usual(Matcha)),
            low_degree(usual(Dpsgd)),
        ],
        ..Exhibit::new(
            "table1",
            "Tab:1",
            "D-PSGD and MATCHA: workers of lower degree do worse",
        )
    });
    let papers = [
        "table2.dpsgd",
        "table2.al-dsgd",
        "table2.dpsgd-cifar100",
        "table2.al-dsgd-cifar100",
    ];
    let (columns, claims) = both_tasks(usual(AlDsgdOverDpsgd), usual(Dpsgd), papers);
    all.push(Exhibit {
        columns,
        claims,
        ..Exhibit::new(
            "table2",
            "Tab:2",
            "D-PSGD and AL-DSGD over it: ResNet-50 on CIFAR-10, WideResNet on CIFAR-100",
        )
    });
    all.push(degrees(
        "table3",
        "Tab:3",
        "D-PSGD on graphs of fewer links",
        Dpsgd,
        1,
        ["table3.13", "table3.11", "table3.9", "table3.7", "table3.5"],
    ));
    all.push(degrees(
        "table4",
        "Tab:4",
        "AL-DSGD over D-PSGD, three graphs, on graphs of fewer links",
        AlDsgdOverDpsgd,
        3,
        ["table4.13", "table4.11", "table4.9", "table4.7", "table4.5"],
    ));
    all.push(degrees(
        "table5",
        "Tab:5",
        "MATCHA on graphs of fewer links",
        Matcha,
        1,
        ["table5.13", "table5.11", "table5.9", "table5.7", "table5.5"],
    ));
    all.push(degrees(
        "table6",
        "Tab:6",
        "AL-DSGD over MATCHA, three graphs, on graphs of fewer links",
        AlDsgdOverMatcha,
        3,
        ["table6.13", "table6.11", "table6.9", "table6.7", "table6.5"],
    ));
    let from: [(Algorithm, u8, [&'static str; 5]); 4] = [
        (
            Dpsgd,
            1,
            ["table3.13", "table3.11", "table3.9", "table3.7", "table3.5"],
        ),
        (
            AlDsgdOverDpsgd,
            3,
            ["table4.13", "table4.11", "table4.9", "table4.7", "table4.5"],
        ),
        (
            Matcha,
            1,
            ["table5.13", "table5.11", "table5.9", "table5.7", "table5.5"],
        ),
        (
            AlDsgdOverMatcha,
            3,
            ["table6.13", "table6.11", "table6.9", "table6.7", "table6.5"],
        ),
    ];
    let grid = |chosen: &[usize]| -> Vec<Column> {
        let rows = chosen.iter().map(|&row| from[row]);
        let cells = rows.flat_map(|(algorithm, copies, paper)| {
            let columns = LINKS.into_iter().zip(paper);
            columns
                .map(move |(links, paper)| column(Cell::new(algorithm, links, copies), Some(paper)))
        });
        cells.collect()
    };
    let pairs = |one: Algorithm, other: Algorithm| {
        LINKS.map(|links| Claim {
            sentence: format!(
                "{} has a higher mean test accuracy than {} at D = {links}",
                one.words(),
                other.words()
            ),
            kind: ClaimKind::Better {
                measure: Measure::MeanAccuracy,
                one: Cell::new(one, links, 3),
                other: Cell::new(other, links, 1),
            },
        })
    };
    let mut claims = Vec::from(pairs(AlDsgdOverDpsgd, Dpsgd));
    claims.push(robust(AlDsgdOverDpsgd, 3, Dpsgd));
    claims.extend(pairs(AlDsgdOverMatcha, Matcha));
    claims.push(robust(AlDsgdOverMatcha, 3, Matcha));
    all.push(Exhibit {
        columns: grid(&[0, 1, 2, 3]),
        by_node: false,
        claims,
        ..Exhibit::new(
            "table7",
            "Tab:7",
            "mean test accuracy of all four on graphs of fewer links",
        )
    });
    all.push(degrees(
        "table8",
        "Tab:8",
        "AL-DSGD over MATCHA, two graphs, on graphs of fewer links",
        AlDsgdOverMatcha,
        2,
        ["table8.13", "table8.11", "table8.9", "table8.7", "table8.5"],
    ));
    all.push(degrees(
        "table9",
        "Tab:9",
        "AL-DSGD over D-PSGD, two graphs, on graphs of fewer links",
        AlDsgdOverDpsgd,
        2,
        ["table9.13", "table9.11", "table9.9", "table9.7", "table9.5"],
    ));
    let papers = [
        "table10.matcha",
        "table10.al-dsgd",
        "table10.matcha-cifar100",
        "table10.al-dsgd-cifar100",
    ];
    let (columns, claims) = both_tasks(usual(AlDsgdOverMatcha), usual(Matcha), papers);
    all.push(Exhibit {
        columns,
        claims,
        ..Exhibit::new(
            "table10",
            "Tab:10",
            "MATCHA and AL-DSGD over it: ResNet-50 on CIFAR-10, WideResNet on CIFAR-100",
        )
    });
    all.push(Exhibit {
        columns: grid(&[0, 1]),
        by_node: false,
        claims: vec![robust(AlDsgdOverDpsgd, 3, Dpsgd)],
        ..Exhibit::new(
            "figure9",
            "Fig: 9",
            "accuracy against degree: D-PSGD, and AL-DSGD over it",
        )
    });
    all.push(Exhibit {
        columns: grid(&[2, 3]),
        by_node: false,
        claims: vec![robust(AlDsgdOverMatcha, 3, Matcha)],
        ..Exhibit::new(
            "figure18",
            "Fig: 18",
            "accuracy against degree: MATCHA, and AL-DSGD over it",
        )
    });
    let alone = |algorithm| Cell::new(algorithm, 13, 1);
    let needs_rotation = |led: Algorithm| Claim {
        sentence: format!(
            "{} needs its copies: with them its mean accuracy is higher",
            led.words()
        ),
        kind: ClaimKind::Better {
            measure: Measure::MeanAccuracy,
            one: usual(led),
            other: alone(led),
        },
    };
    let improves = |what: &str, one: Cell, other: Cell| Claim {
        sentence: format!("{what} has a higher mean test accuracy"),
        kind: ClaimKind::Better {
            measure: Measure::MeanAccuracy,
            one,
            other,
        },
    };
    all.push(Exhibit {
        columns: [Dpsgd, AlDsgdOverDpsgd, Matcha, AlDsgdOverMatcha]
            .map(|algorithm| column(alone(algorithm), None))
            .into(),
        claims: vec![
            needs_rotation(AlDsgdOverDpsgd),
            needs_rotation(AlDsgdOverMatcha),
            improves(
                "without copies, AL-DSGD beside D-PSGD",
                alone(AlDsgdOverDpsgd),
                alone(Dpsgd),
            ),
            improves(
                "without copies, AL-DSGD beside MATCHA",
                alone(AlDsgdOverMatcha),
                alone(Matcha),
            ),
        ],
        ..Exhibit::new(
            "figure10",
            "Fig: 10",
            "ablation: AL-DSGD without copies of the graph",
        )
    });
    let full = usual(AlDsgdOverDpsgd);
    let mut columns = vec![
        column(usual(Dpsgd), None),
        column(full.keeping(Kept::Nothing), None),
    ];
    columns.extend(PULLS.map(|part| column(full.keeping(Kept::Only(part)), None)));
    columns.push(column(alone(AlDsgdOverDpsgd), None));
    columns.push(column(full, None));
    let copies = full.keeping(Kept::Nothing);
    let mut claims = vec![improves(
        "the copies alone, beside D-PSGD,",
        copies,
        usual(Dpsgd),
    )];
    claims.extend(PULLS.map(|part| {
        let what = format!("{part} with the copies, beside the copies alone,");
        improves(&what, full.keeping(Kept::Only(part)), copies)
    }));
    claims.push(improves("all, beside the copies alone,", full, copies));
    all.push(Exhibit {
        columns,
        by_node: false,
        claims,
        ..Exhibit::new(
            "ablation",
            "beyond Fig: 10",
            "ablation: none of AL-DSGD's parts, the copies alone, each pull alone, no copies, all",
        )
    });
    all.push(Exhibit {
        columns: [full, usual(AlDsgdOverMatcha)]
            .into_iter()
            .flat_map(|cell| [cell, cell.keeping(Kept::Metropolis)])
            .map(|cell| column(cell, None))
            .collect(),
        by_node: false,
        variant: Some(Variant::Written),
        ..Exhibit::new("written", "beyond Tab:2", "the paper's rule to the letter, with the weights that the paper takes and with Metropolis weights")
    });
    let metropolis = |cell: Cell| cell.keeping(Kept::Metropolis);
    let turning = Cell::new(Dpsgd, 13, 3);
    all.push(Exhibit {
        columns: [
            usual(Dpsgd),
            metropolis(usual(Dpsgd)),
            turning,
            metropolis(turning),
            full,
            metropolis(full),
        ]
        .map(|cell| column(cell, None))
        .into(),
        by_node: false,
        variant: Some(Variant::Sound),
        claims: vec![
            improves("AL-DSGD beside D-PSGD, both with Metropolis weights,", metropolis(full), metropolis(usual(Dpsgd))),
            improves("AL-DSGD beside D-PSGD, both in three copies,", full, turning),
        ],
        ..Exhibit::new(
            "weights",
            "beyond Tab:2",
            "whether it is the leaders: D-PSGD and AL-DSGD with weights that are never negative, and both in copies",
        )
    });
    let everything = [Dpsgd, AlDsgdOverDpsgd, Matcha, AlDsgdOverMatcha]
        .into_iter()
        .flat_map(|algorithm| LINKS.map(|links| (algorithm, links)))
        .flat_map(|(algorithm, links)| [1, 2, 3].map(|copies| Cell::new(algorithm, links, copies)));
    all.push(Exhibit {
        columns: everything.map(|cell| column(cell, None)).collect(),
        by_node: false,
        ..Exhibit::new(
            "grid",
            "beyond Tab:7",
            "all four on all graphs, with one, two and three copies",
        )
    });
    all
}
