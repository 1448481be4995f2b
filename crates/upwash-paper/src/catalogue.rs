//! The paper's tables and figures, and some beyond them: which runs each needs, and what it is said to show.

use super::cells::{Algorithm, Cell, Kept, LINKS, PULLS, Task};
use super::claims::Claim;
use super::exhibits::{Column, Exhibit};
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

/// AL-DSGD beside its baseline, on both data sets.
fn both_tasks(exhibit: Exhibit, one: Cell, other: Cell, base: &str) -> Exhibit {
    let (mut columns, mut claims) = (Vec::new(), Vec::new());
    for (task, ending) in [(Task::Cifar10, ""), (Task::Cifar100, "-cifar100")] {
        let (one, other) = (one.on(task), other.on(task));
        for (cell, name) in [(other, base), (one, "al-dsgd")] {
            columns.push(Column::new(cell).printed(&exhibit.name, format!("{name}{ending}")));
        }
        claims.extend(Claim::better(one, other));
    }
    Exhibit {
        columns,
        claims,
        ..exhibit
    }
}

/// One algorithm on ever fewer links, as the paper has it in one of its tables.
fn links(algorithm: Algorithm, copies: u8, table: &str) -> Vec<Column> {
    let column = |links| Column::new(Cell::new(algorithm, links, copies)).printed(table, links);
    LINKS.map(column).into()
}

/// What is said of AL-DSGD on fewer links.
fn led(one: Algorithm, copies: u8, other: Algorithm) -> Vec<Claim> {
    let mut claims = Claim::on_every_graph(one, copies, other);
    claims.push(Claim::robust(one, copies, other));
    claims
}

fn degrees(exhibit: Exhibit, algorithm: Algorithm, copies: u8) -> Exhibit {
    let claims = match algorithm {
        AlDsgdOverDpsgd => led(algorithm, copies, Dpsgd),
        AlDsgdOverMatcha => led(algorithm, copies, Matcha),
        Dpsgd => vec![
            Claim::low_degree(usual(Dpsgd)),
            Claim::more_accurate(
                "D-PSGD is worse with few links: its mean test accuracy is higher at D = 13 than at D = 11",
                usual(Dpsgd),
                Cell::new(Dpsgd, 11, 1),
            ),
        ],
        Matcha => vec![],
    };
    Exhibit {
        columns: links(algorithm, copies, &exhibit.name),
        claims,
        ..exhibit
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
                Claim::slowest(usual(Dpsgd)),
                Claim::slowest(usual(Matcha)),
                Claim::low_degree(usual(Dpsgd)),
            ],
            ..Exhibit::new(
                "table1",
                "Tab:1",
                "Performance of D-PSGD and MATCHA on CIFAR-10",
            )
        },
        both_tasks(
            Exhibit::new(
                "table2",
                "Tab:2",
                "Test accuracy obtained with D-PSGD and D-PSGD-based AL-DSGD for ResNet-50 model trained on CIFAR-10 and WideResNet model trained on CIFAR-100",
            ),
            usual(AlDsgdOverDpsgd),
            usual(Dpsgd),
            "dpsgd",
        ),
        degrees(
            Exhibit::new(
                "table3",
                "Tab:3 (Table 4 in print)",
                "Performance of D-PSGD with different topology degree on CIFAR-10",
            ),
            Dpsgd,
            1,
        ),
        degrees(
            Exhibit::new(
                "table4",
                "Tab:4 (Table 5 in print)",
                "Performance of AL-DSGD using D-PSGD as baseline with different topology degree on CIFAR-10 (three graphs)",
            ),
            AlDsgdOverDpsgd,
            3,
        ),
        degrees(
            Exhibit::new(
                "table5",
                "Tab:5 (Table 6 in print)",
                "Performance MATCHA with different topology degree on CIFAR-10",
            ),
            Matcha,
            1,
        ),
        degrees(
            Exhibit::new(
                "table6",
                "Tab:6 (Table 7 in print)",
                "Performance of AL-DSGD using MATCHA as baseline with different topology degree on CIFAR-10 (three graphs)",
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
    let mut claims = Vec::new();
    for (one, other) in [(AlDsgdOverDpsgd, Dpsgd), (AlDsgdOverMatcha, Matcha)] {
        claims.extend(led(one, 3, other));
        claims.push(Claim::sparse_beats_dense(one, other));
    }
    all.push(Exhibit {
        columns: [over_dpsgd(), over_matcha()].concat(),
        by_node: false,
        claims,
        ..Exhibit::new(
            "table7",
            "Tab:7 (Table 3 in print)",
            "The performance of D-PSGD, MATCHA, AL-DSGD-based D-PSGD, and AL-DSGD-based MATCHA for topologies with different total degrees D",
        )
    });
    all.push(degrees(
        Exhibit::new(
            "table8",
            "Tab:8 (Table 9 in print)",
            "Performance of AL-DSGD using MATCHA as baseline with different topology degree on CIFAR-10 (two graphs)",
        ),
        AlDsgdOverMatcha,
        2,
    ));
    all.push(degrees(
        Exhibit::new(
            "table9",
            "Tab:9 (Table 8 in print)",
            "Performance of AL-DSGD using D-PSGD as baseline with different topology degree on CIFAR-10 (two graphs)",
        ),
        AlDsgdOverDpsgd,
        2,
    ));
    all.push(both_tasks(
        Exhibit::new(
            "table10",
            "Tab:10",
            "Test accuracy obtained with MATCHA and MATCHA-based AL-DSGD for ResNet-50 model trained on CIFAR-10 and WideResNet model trained on CIFAR-100",
        ),
        usual(AlDsgdOverMatcha),
        usual(Matcha),
        "matcha",
    ));
    all.push(Exhibit {
        columns: over_dpsgd(),
        by_node: false,
        claims: vec![Claim::robust(AlDsgdOverDpsgd, 3, Dpsgd)],
        ..Exhibit::new(
            "figure9",
            "Fig: 9",
            "ResNet-50 model trained on CIFAR-10. Performance of a) D-PSGD and b) AL-DSGD-based D-PSGD with different topology degrees",
        )
    });
    all.push(Exhibit {
        columns: over_matcha(),
        by_node: false,
        claims: vec![Claim::robust(AlDsgdOverMatcha, 3, Matcha)],
        ..Exhibit::new(
            "figure18",
            "Fig: 18 (Figure 14 in print)",
            "ResNet-50 on CIFAR-10. (a): Performance of MATCHA with different topology degrees (b): Performance of MATCHA based AL-DSGD with different topology degrees",
        )
    });
    let alone = |algorithm| Cell::new(algorithm, 13, 1);
    let needs_rotation = |led: Algorithm| {
        let sentence = format!(
            "{} needs its copies: with them its mean accuracy is higher",
            led.display_name()
        );
        Claim::more_accurate(sentence, usual(led), alone(led))
    };
    let improves = |what: &str, one: Cell, other: Cell| {
        Claim::more_accurate(
            format!("{what} has a higher mean test accuracy"),
            one,
            other,
        )
    };
    all.push(Exhibit {
        columns: [Dpsgd, AlDsgdOverDpsgd, Matcha, AlDsgdOverMatcha]
            .map(|algorithm| Column::new(alone(algorithm)))
            .into(),
        claims: vec![
            needs_rotation(AlDsgdOverDpsgd),
            needs_rotation(AlDsgdOverMatcha),
            improves(
                "the paper says no: without copies, AL-DSGD beside D-PSGD",
                alone(AlDsgdOverDpsgd),
                alone(Dpsgd),
            ),
            improves(
                "the paper says no: without copies, AL-DSGD beside MATCHA",
                alone(AlDsgdOverMatcha),
                alone(Matcha),
            ),
        ],
        ..Exhibit::new(
            "figure10",
            "Fig: 10",
            "ResNet-50 model trained on CIFAR-10. Experiments to show AL-DSGD without dynamic communication graph",
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
    claims.push(improves(
        "the paper says no: the leaders alone, without copies, beside D-PSGD,",
        alone(AlDsgdOverDpsgd),
        usual(Dpsgd),
    ));
    claims.push(improves("all, beside D-PSGD,", full, usual(Dpsgd)));
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
    let column = |cell: Cell| {
        let table = match (cell.algorithm, cell.copies) {
            (Dpsgd, 1) => "table3",
            (AlDsgdOverDpsgd, 3) => "table4",
            (AlDsgdOverDpsgd, 2) => "table9",
            (Matcha, 1) => "table5",
            (AlDsgdOverMatcha, 3) => "table6",
            (AlDsgdOverMatcha, 2) => "table8",
            _ => return Column::new(cell),
        };
        Column::new(cell).printed(table, cell.links)
    };
    let everything = [Dpsgd, AlDsgdOverDpsgd, Matcha, AlDsgdOverMatcha]
        .into_iter()
        .flat_map(|algorithm| LINKS.map(|links| (algorithm, links)))
        .flat_map(|(algorithm, links)| [1, 2, 3].map(|copies| Cell::new(algorithm, links, copies)));
    let over = |links: &[u8], copies: &[u8], pair: &dyn Fn(u8, u8) -> [Cell; 2]| {
        let all = links.iter();
        let pairs = all.flat_map(|links| copies.iter().map(|copies| pair(*links, *copies)));
        pairs.collect::<Vec<_>>()
    };
    let mut claims = Vec::new();
    for (led, base) in [(AlDsgdOverDpsgd, Dpsgd), (AlDsgdOverMatcha, Matcha)] {
        let name = base.display_name();
        let sentence = format!(
            "the leaders: in the mean over all graphs, AL-DSGD has a higher mean test accuracy than {name} in as many copies"
        );
        let leaders = |links, copies| [led, base].map(|one| Cell::new(one, links, copies));
        claims.push(Claim::across(sentence, over(&LINKS, &[1, 2, 3], &leaders)));
        // At D = 5 two workers have no link: that is another matter.
        for (links, which) in [(&LINKS[..4], "D = 13 to 7"), (&LINKS[4..], "D = 5")] {
            let sentence = format!(
                "the copies: at {which}, {name} has a higher mean test accuracy in two or three copies than in one"
            );
            let copies = |links, copies| [copies, 1].map(|copies| Cell::new(base, links, copies));
            claims.push(Claim::across(sentence, over(links, &[2, 3], &copies)));
        }
    }
    all.push(Exhibit {
        columns: everything.map(column).collect(),
        by_node: false,
        claims,
        ..Exhibit::new(
            "grid",
            "beyond Tab:7",
            "all four on all graphs, with one, two and three copies",
        )
    });
    all
}
