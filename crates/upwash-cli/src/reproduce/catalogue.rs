//! The paper's tables and figures, and some beyond them: which runs each needs, and what it is said to show.

use super::cells::{Algorithm, Cell, Kept, LINKS, PULLS, Task};
use super::exhibits::{Claim, ClaimKind, Column, Exhibit, Measure};
use upwash::algorithm::Variant;

use Algorithm::{AlDsgdOverDpsgd, AlDsgdOverMatcha, Dpsgd, Matcha};

/// The graph as it is for baselines, three copies for AL-DSGD: what the paper shows most.
const fn usual(algorithm: Algorithm) -> Cell {
    let copies = match algorithm {
        AlDsgdOverDpsgd | AlDsgdOverMatcha => 3,
        Dpsgd | Matcha => 1,
    };
    Cell::new(algorithm, 13, copies)
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

/// AL-DSGD beside its baseline, on both data sets.
fn both_tasks(exhibit: Exhibit, one: Cell, other: Cell, base: &str) -> Exhibit {
    let (mut columns, mut claims) = (Vec::new(), Vec::new());
    for (task, ending) in [(Task::Cifar10, ""), (Task::Cifar100, "-cifar100")] {
        let (one, other) = (one.on(task), other.on(task));
        for (cell, name) in [(other, base), (one, "al-dsgd")] {
            columns.push(Column::new(cell).printed(&exhibit.name, format!("{name}{ending}")));
        }
        claims.extend(better(one, other));
    }
    Exhibit {
        columns,
        claims,
        ..exhibit
    }
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

/// One algorithm on ever fewer links, as the paper has it in one of its tables.
fn links(algorithm: Algorithm, copies: u8, table: &str) -> Vec<Column> {
    let column = |links| Column::new(Cell::new(algorithm, links, copies)).printed(table, links);
    LINKS.map(column).into()
}

fn degrees(exhibit: Exhibit, algorithm: Algorithm, copies: u8) -> Exhibit {
    let claims = match algorithm {
        AlDsgdOverDpsgd => vec![robust(algorithm, copies, Dpsgd)],
        AlDsgdOverMatcha => vec![robust(algorithm, copies, Matcha)],
        Dpsgd => vec![low_degree(usual(Dpsgd))],
        Matcha => vec![],
    };
    Exhibit {
        columns: links(algorithm, copies, &exhibit.name),
        claims,
        ..exhibit
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
    let mut all = vec![
        Exhibit {
            columns: vec![
                Column::new(usual(Dpsgd)).printed("table1", "dpsgd"),
                Column::new(usual(Matcha)).printed("table1", "matcha"),
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
        },
        both_tasks(
            Exhibit::new(
                "table2",
                "Tab:2",
                "D-PSGD and AL-DSGD over it: ResNet-50 on CIFAR-10, WideResNet on CIFAR-100",
            ),
            usual(AlDsgdOverDpsgd),
            usual(Dpsgd),
            "dpsgd",
        ),
        degrees(
            Exhibit::new("table3", "Tab:3", "D-PSGD on graphs of fewer links"),
            Dpsgd,
            1,
        ),
        degrees(
            Exhibit::new(
                "table4",
                "Tab:4",
                "AL-DSGD over D-PSGD, three graphs, on graphs of fewer links",
            ),
            AlDsgdOverDpsgd,
            3,
        ),
        degrees(
            Exhibit::new("table5", "Tab:5", "MATCHA on graphs of fewer links"),
            Matcha,
            1,
        ),
        degrees(
            Exhibit::new(
                "table6",
                "Tab:6",
                "AL-DSGD over MATCHA, three graphs, on graphs of fewer links",
            ),
            AlDsgdOverMatcha,
            3,
        ),
    ];
    let over_dpsgd = || {
        [
            links(Dpsgd, 1, "table3"),
            links(AlDsgdOverDpsgd, 3, "table4"),
        ]
        .concat()
    };
    let over_matcha = || {
        [
            links(Matcha, 1, "table5"),
            links(AlDsgdOverMatcha, 3, "table6"),
        ]
        .concat()
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
        columns: [over_dpsgd(), over_matcha()].concat(),
        by_node: false,
        claims,
        ..Exhibit::new(
            "table7",
            "Tab:7",
            "mean test accuracy of all four on graphs of fewer links",
        )
    });
    all.push(degrees(
        Exhibit::new(
            "table8",
            "Tab:8",
            "AL-DSGD over MATCHA, two graphs, on graphs of fewer links",
        ),
        AlDsgdOverMatcha,
        2,
    ));
    all.push(degrees(
        Exhibit::new(
            "table9",
            "Tab:9",
            "AL-DSGD over D-PSGD, two graphs, on graphs of fewer links",
        ),
        AlDsgdOverDpsgd,
        2,
    ));
    all.push(both_tasks(
        Exhibit::new(
            "table10",
            "Tab:10",
            "MATCHA and AL-DSGD over it: ResNet-50 on CIFAR-10, WideResNet on CIFAR-100",
        ),
        usual(AlDsgdOverMatcha),
        usual(Matcha),
        "matcha",
    ));
    all.push(Exhibit {
        columns: over_dpsgd(),
        by_node: false,
        claims: vec![robust(AlDsgdOverDpsgd, 3, Dpsgd)],
        ..Exhibit::new(
            "figure9",
            "Fig: 9",
            "accuracy against degree: D-PSGD, and AL-DSGD over it",
        )
    });
    all.push(Exhibit {
        columns: over_matcha(),
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
            .map(|algorithm| Column::new(alone(algorithm)))
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
    // Without any pull AL-DSGD is its base.
    let copies = Cell::new(Dpsgd, 13, 3);
    let mut columns = vec![Column::new(usual(Dpsgd)), Column::new(copies)];
    columns.extend(PULLS.map(|part| Column::new(full.keeping(Kept::Only(part)))));
    columns.push(Column::new(alone(AlDsgdOverDpsgd)));
    columns.push(Column::new(full));
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
            .map(Column::new)
            .collect(),
        by_node: false,
        variant: Some(Variant::Written),
        ..Exhibit::new("written", "beyond Tab:2", "the paper's rule to the letter, with the weights that the paper takes and with Metropolis weights")
    });
    let metropolis = |cell: Cell| cell.keeping(Kept::Metropolis);
    all.push(Exhibit {
        columns: [
            usual(Dpsgd),
            metropolis(usual(Dpsgd)),
            copies,
            metropolis(copies),
            full,
            metropolis(full),
        ]
        .map(Column::new)
        .into(),
        by_node: false,
        variant: Some(Variant::Sound),
        claims: vec![
            improves("AL-DSGD beside D-PSGD, both with Metropolis weights,", metropolis(full), metropolis(usual(Dpsgd))),
            improves("AL-DSGD beside D-PSGD, both in three copies,", full, copies),
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
        columns: everything.map(Column::new).collect(),
        by_node: false,
        ..Exhibit::new(
            "grid",
            "beyond Tab:7",
            "all four on all graphs, with one, two and three copies",
        )
    });
    all
}
