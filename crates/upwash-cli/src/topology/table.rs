//! Plain-text tables of an analysis, at most 80 columns wide.

use anyhow::Result;
use std::io::Write;
use upwash_topology::published::Theorem1;
use upwash_topology::{Analysis, Contraction, FiniteTime, Graph, GraphSpec, LeaderAnalysis, MatchaAnalysis};

/// Graphs with more workers than this get no table of single workers.
const MAX_LISTED: usize = 32;

pub(crate) fn analysis(out: &mut impl Write, spec: &GraphSpec, graph: &Graph, analysis: &Analysis) -> Result<()> {
    headline(out, spec, analysis)?;
    contractions(out, analysis)?;
    finite_time(out, analysis)?;
    if let Some(matcha) = &analysis.matcha {
        matchings(out, analysis, matcha)?;
    }
    if let Some(al_dsgd) = &analysis.al_dsgd {
        leaders(out, al_dsgd, analysis.matcha.as_ref())?;
    }
    if analysis.nodes <= MAX_LISTED {
        workers(out, graph, analysis)?;
    }
    Ok(())
}

pub(crate) fn optimum(out: &mut impl Write, spec: &GraphSpec, analysis: &Analysis) -> Result<()> {
    headline(out, spec, analysis)?;
    let Some(matcha) = &analysis.matcha else {
        return Ok(());
    };
    matchings(out, analysis, matcha)?;
    writeln!(out)?;
    let rows =
        [("D-PSGD (all links)".into(), analysis.dpsgd.clone()), (matcha_name(matcha), matcha.contraction.clone())];
    contraction_table(out, &rows)
}

fn headline(out: &mut impl Write, spec: &GraphSpec, analysis: &Analysis) -> Result<()> {
    let workers = count(analysis.nodes, "worker");
    let links = count(analysis.edges, "link");
    let connected = match analysis.connected {
        true => "connected",
        false => "not connected",
    };
    // The name gets its own line, because it may contain a long path.
    writeln!(out, "{spec}\n{workers}, {links}, {connected}\n")?;
    // Of workers with the same degree, the first is named.
    let degrees = || analysis.degrees.iter().enumerate();
    let (least_at, least) = degrees().min_by_key(|at| at.1).unwrap_or((0, &0));
    let (most_at, most) = degrees().rev().max_by_key(|at| at.1).unwrap_or((0, &0));
    let mean = 2.0 * analysis.edges as f64 / analysis.nodes as f64;
    match least == most {
        true => writeln!(out, "  degrees      all {least}")?,
        false => writeln!(
            out,
            "  degrees      mean {mean:.2}, least {least} (worker {least_at}), \
             most {most} (worker {most_at})"
        )?,
    }
    let sizes = analysis.matchings.iter();
    let sizes: Vec<String> = sizes.map(|matching| matching.len().to_string()).collect();
    let listed = match sizes.len() {
        2..=12 => format!(", of {} links", sizes.join(" + ")),
        _ => String::new(),
    };
    writeln!(out, "  matchings    {}{listed}", sizes.len())?;
    writeln!(out, "  lambda_2     {:.6}", analysis.lambda2)?;
    writeln!(out, "  lambda_max   {:.6}", analysis.lambda_max)?;
    if !analysis.connected {
        let pieces = analysis.pieces.len();
        writeln!(out, "  {pieces} pieces that never agree: rho is 1, alpha is that of the largest piece")?;
    }
    Ok(())
}

/// Links that end disagreement altogether.
fn finite_time(out: &mut impl Write, analysis: &Analysis) -> Result<()> {
    if analysis.finite_time.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nThese links, which replace those of the graph, reach the exact average of {}\nworkers:\n",
        analysis.nodes
    )?;
    writeln!(out, "  {:<28}  rounds  links per worker", "graph.links")?;
    for FiniteTime { links, rounds, peers } in &analysis.finite_time {
        let bound = format!("at most {peers}");
        writeln!(out, "  {links:<28}  {rounds:>6}  {bound:>16}")?;
    }
    Ok(())
}

fn contractions(out: &mut impl Write, analysis: &Analysis) -> Result<()> {
    writeln!(
        out,
        "\nSpeed of consensus. A round multiplies the squared disagreement by at most rho;\n\
         `rounds` is the number of rounds that shrink disagreement to a hundredth.\n"
    )?;
    let note = |exact: bool, note: &'static str| if exact { "" } else { note };
    let mut rows: Vec<(String, Contraction)> = vec![
        ("D-PSGD, optimal alpha".into(), analysis.dpsgd.clone()),
        ("D-PSGD, Metropolis".into(), analysis.metropolis.clone()),
        ("D-PSGD, uniform".into(), analysis.uniform.clone()),
    ];
    if let Some(matcha) = &analysis.matcha {
        rows.push((matcha_name(matcha), matcha.contraction.clone()));
    }
    // For the others, only rho is known.
    let mut add = |name: String, rho: f64| rows.push((name, Contraction::from_rho(rho)));
    let over_matcha = analysis.matcha.as_ref();
    if let Some(leaders) = over_matcha.and_then(|matcha| matcha.al_dsgd.as_ref()) {
        let suffix = note(leaders.exact, " (sampled)");
        add(format!("AL-DSGD over MATCHA{suffix}"), leaders.rho_random);
    }
    if let Some(al_dsgd) = &analysis.al_dsgd {
        add("AL-DSGD, random losses".into(), al_dsgd.rho_random);
        let suffix = note(al_dsgd.rho_worst_exact, " (bound)");
        add(format!("AL-DSGD, worst leaders{suffix}"), al_dsgd.rho_worst);
    }
    if let Some(rotation) = &analysis.rotation {
        let copies = rotation.relabelings.len();
        add(format!("D-PSGD, {copies} copies in turn"), rotation.rho);
        if let Some(rho) = rotation.rho_random {
            add(format!("AL-DSGD, {copies} copies in turn"), rho);
        }
    }
    contraction_table(out, &rows)?;
    let weak = &analysis.dpsgd.without_positive_diagonal;
    if !weak.is_empty() {
        writeln!(
            out,
            "\n  Self-weight <= 0 with the optimal alpha: {} {}.\n  \
             The paper's Algorithm 1, as written, scales gradient steps by that weight, so\n  \
             these stand still or go uphill. Metropolis weights are always positive.",
            if weak.len() == 1 { "worker" } else { "workers" },
            shortened(weak, 8)
        )?;
    }
    if let Some(rotation) = &analysis.rotation {
        let copies = rotation.relabelings.len();
        writeln!(
            out,
            "\n  Over a cycle of {copies} {}, expected degrees have variance {:.4}, and the\n  \
             mean Laplacian has lambda_2 {:.6}.",
            if copies == 1 { "copy" } else { "copies" },
            rotation.degree_variance,
            rotation.lambda2_mean
        )?;
    }
    Ok(())
}

fn contraction_table(out: &mut impl Write, rows: &[(String, Contraction)]) -> Result<()> {
    let [alpha, rho, gap, rounds] = ["alpha", "rho", "gap", "rounds"];
    writeln!(out, "  {:<34}{alpha:>9}{rho:>11}{gap:>10}{rounds:>9}", "")?;
    for (name, row) in rows {
        let alpha = row.alpha.map_or("".into(), |alpha| format!("{alpha:.4}"));
        let rounds = row.mixing_rounds.map(|rounds| rounds.to_string());
        let rounds = rounds.unwrap_or("never".into());
        let (rho, gap) = (row.rho, row.spectral_gap);
        writeln!(out, "  {name:<34}{alpha:>9}{rho:>11.6}{gap:>10.6}{rounds:>9}")?;
    }
    Ok(())
}

fn matcha_name(matcha: &MatchaAnalysis) -> String {
    format!("MATCHA, budget {}", matcha.budget)
}

fn matchings(out: &mut impl Write, analysis: &Analysis, matcha: &MatchaAnalysis) -> Result<()> {
    let lambda2 = match analysis.connected {
        true => "lambda_2 of the expected graph",
        false => "The smallest lambda_2 of any piece",
    };
    writeln!(
        out,
        "\n{}: {:.2} of {} links are up in an average round, for {:.0} % of\nthe bytes of D-PSGD.\n\
         {lambda2} is {:.6}; no probabilities reach more than\n{:.6}.\n",
        matcha_name(matcha),
        matcha.expected_links,
        analysis.edges,
        100.0 * matcha.expected_links / analysis.edges as f64,
        matcha.lambda2,
        matcha.lambda2_upper_bound
    )?;
    writeln!(out, "  matching  probability  links")?;
    let rows = analysis.matchings.iter().zip(&matcha.probabilities);
    for (number, (links, &probability)) in rows.enumerate() {
        // A tiny budget has tiny probabilities, which must not be printed as zero.
        let probability = match probability > 0.0 && probability < 5e-5 {
            true => format!("{probability:.2e}"),
            false => format!("{probability:.4}"),
        };
        let links = link_list(links, 55);
        writeln!(out, "  {number:>8}  {probability:>11}  {links}")?;
    }
    published(out, &matcha.published_theorem1)
}

/// Prints the conditions of Theorem 1 of the AL-DSGD paper, for comparison.
fn published(out: &mut impl Write, theorem: &Theorem1) -> Result<()> {
    let conditions = match theorem.alpha {
        Some((low, high)) => {
            let w = theorem.w_best_below;
            format!("alpha between {low:.4} and {high:.4}, w_best below {w:.5}")
        }
        None if theorem.lambda_min > 0.0 => "conditions that no alpha satisfies: its zeta is 0".into(),
        None => "a connected graph of two workers or more".into(),
    };
    writeln!(out, "\n  Theorem 1 of the AL-DSGD paper, as printed, requires\n  {conditions}.")?;
    if theorem.alpha.is_some() && !theorem.alpha_within_limit {
        let limit = theorem.alpha_limit;
        writeln!(out, "  Its proof also needs alpha <= {limit:.4}, which the theorem does not state.")?;
    }
    Ok(())
}

fn leaders(out: &mut impl Write, al_dsgd: &LeaderAnalysis, matcha: Option<&MatchaAnalysis>) -> Result<()> {
    let weights = &al_dsgd.weights;
    let (best, degree) = (weights.best, weights.degree);
    writeln!(out, "\nAL-DSGD, w_best {best} and w_degree {degree}:\n")?;
    let four = |value: f64| format!("{value:.4}");
    let limit = |value: Option<f64>| value.map_or("none".into(), four);
    let safe = "safe for any leaders: w_best + w_degree <";
    let mut lines = vec![(safe, format!("{:.5}", al_dsgd.w_safe))];
    if let Some(leaders) = matcha.and_then(|matcha| matcha.al_dsgd.as_ref()) {
        lines.push(("the same over MATCHA", format!("{:.5}", leaders.w_safe)));
    }
    let (workers, workers_written) = (al_dsgd.effective_workers, al_dsgd.effective_workers_written);
    let (step, drift) = (four(al_dsgd.step_factor), four(al_dsgd.mean_drift));
    let printed = limit(al_dsgd.published_step_limit);
    let proved = limit(al_dsgd.published_step_limit_proved);
    lines.extend([
        ("effective fraction of a step (sound, released)", step),
        ("the same, as written", four(al_dsgd.step_factor_written)),
        ("effective number of workers", format!("{workers:.2}")),
        ("the same, as written", format!("{workers_written:.2}")),
        ("inequality of the workers' weights, |A'1 - 1|", drift),
        ("Theorem 2's largest gamma L, as printed", printed),
        ("the same, as its proof (which has gaps) needs it", proved),
    ]);
    for (name, value) in lines {
        writeln!(out, "  {name:<49} {value}")?;
    }
    if matcha.is_none() {
        published(out, &al_dsgd.published_theorem1)?;
    }
    Ok(())
}

fn workers(out: &mut impl Write, graph: &Graph, analysis: &Analysis) -> Result<()> {
    let degrees = analysis.rotation.as_ref();
    let degrees = degrees.map(|rotation| &rotation.expected_degrees);
    let influence = analysis.al_dsgd.as_ref().map(|al_dsgd| &al_dsgd.influence);
    let heading = |column: Option<&Vec<f64>>, name: &str| column.map_or(String::new(), |_| format!("{name:>11}"));
    writeln!(
        out,
        "\n  worker  degree{}{}  neighbors",
        heading(degrees, "in a cycle"),
        heading(influence, "influence"),
    )?;
    for worker in 0..analysis.nodes {
        let cell = |column: Option<&Vec<f64>>, digits: usize| {
            column.map_or(String::new(), |values| format!("{:>11.digits$}", values[worker]))
        };
        writeln!(
            out,
            "  {worker:>6}  {:>6}{}{}  {}",
            analysis.degrees[worker],
            cell(degrees, 2),
            cell(influence, 4),
            shortened(graph.neighbors(worker), 7)
        )?;
    }
    Ok(())
}

/// A list of as many links as fit into `width`.
fn link_list(links: &[(usize, usize)], width: usize) -> String {
    let names: Vec<String> = links.iter().map(|(u, v)| format!("{u}-{v}")).collect();
    let all = names.join(" ");
    if all.len() <= width {
        return all;
    }
    let end = format!(" ... {} in all", names.len());
    let mut fitting = (0..names.len()).rev().map(|shown| names[..shown].join(" "));
    let fitting = fitting.find(|list| list.len() + end.len() <= width);
    fitting.unwrap_or_default() + &end
}

fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

fn shortened(numbers: &[usize], most: usize) -> String {
    if numbers.is_empty() {
        return "none".into();
    }
    let shown: Vec<String> = numbers.iter().take(most).map(usize::to_string).collect();
    let more = match numbers.len().saturating_sub(most) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}
