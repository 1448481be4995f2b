//! An analysis as a person reads it: at most 80 columns.

use anyhow::Result;
use std::io::Write;
use upwash_topology::published::Theorem1;
use upwash_topology::{
    Analysis, Contraction, Graph, GraphSpec, LeaderAnalysis, MatchaAnalysis, RotationAnalysis,
};

/// Lists of more workers than this are summed up.
const MAX_LISTED: usize = 32;

pub(crate) fn analysis(
    out: &mut impl Write,
    spec: &GraphSpec,
    graph: &Graph,
    analysis: &Analysis,
) -> Result<()> {
    headline(out, spec, analysis)?;
    contractions(out, analysis)?;
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
    contraction_header(out)?;
    contraction_row(out, "D-PSGD (all links)", &analysis.dpsgd)?;
    contraction_row(out, &matcha_name(matcha), &matcha.contraction)
}

fn headline(out: &mut impl Write, spec: &GraphSpec, analysis: &Analysis) -> Result<()> {
    let Analysis {
        nodes,
        edges,
        degrees,
        connected,
        ..
    } = analysis;
    let connected = if *connected {
        "connected"
    } else {
        "not connected"
    };
    // A path can be long: the name has a line of its own.
    writeln!(out, "{spec}")?;
    let (workers, links) = (count(*nodes, "worker"), count(*edges, "link"));
    writeln!(out, "{workers}, {links}, {connected}\n")?;
    let end = |pick: fn(&[usize]) -> Option<(usize, usize)>| pick(degrees).unwrap_or((0, 0));
    let (least, least_at) = end(|d| d.iter().copied().zip(0..).min());
    let (most, most_at) = end(|d| {
        d.iter()
            .copied()
            .zip(0..)
            .max_by_key(|&(degree, at): &(usize, usize)| (degree, usize::MAX - at))
    });
    let mean = 2.0 * *edges as f64 / *nodes as f64;
    if least == most {
        writeln!(out, "  degrees      all {least}")?;
    } else {
        writeln!(
            out,
            "  degrees      mean {mean:.2}, least {least} (worker {least_at}), \
             most {most} (worker {most_at})"
        )?;
    }
    let sizes: Vec<String> = analysis
        .matchings
        .iter()
        .map(|matching| matching.len().to_string())
        .collect();
    let sizes = if sizes.len() > 1 && sizes.len() <= 12 {
        format!(", of {} links", sizes.join(" + "))
    } else {
        String::new()
    };
    writeln!(out, "  matchings    {}{sizes}", analysis.matchings.len())?;
    writeln!(out, "  lambda_2     {:.6}", analysis.lambda2)?;
    writeln!(out, "  lambda_max   {:.6}", analysis.lambda_max)?;
    if !analysis.connected {
        let pieces = analysis.pieces.len();
        writeln!(
            out,
            "  {pieces} pieces that never agree: rho is 1, alpha that of the largest piece"
        )?;
    }
    Ok(())
}

fn contractions(out: &mut impl Write, analysis: &Analysis) -> Result<()> {
    writeln!(
        out,
        "\nHow fast workers come to agree. A round multiplies the squared disagreement by\n\
         at most rho; `rounds` is how many shrink disagreement to a hundredth.\n"
    )?;
    contraction_header(out)?;
    contraction_row(out, "D-PSGD, optimal alpha", &analysis.dpsgd)?;
    contraction_row(out, "D-PSGD, Metropolis", &analysis.metropolis)?;
    contraction_row(out, "D-PSGD, uniform", &analysis.uniform)?;
    if let Some(matcha) = &analysis.matcha {
        contraction_row(out, &matcha_name(matcha), &matcha.contraction)?;
        if let Some(leaders) = &matcha.al_dsgd {
            let how = if leaders.exact { "" } else { " (sampled)" };
            rho_row(
                out,
                &format!("AL-DSGD over MATCHA{how}"),
                leaders.rho_random,
            )?;
        }
    }
    if let Some(al_dsgd) = &analysis.al_dsgd {
        rho_row(out, "AL-DSGD, random losses", al_dsgd.rho_random)?;
        let bound = if al_dsgd.rho_worst_exact {
            ""
        } else {
            " (bound)"
        };
        rho_row(
            out,
            &format!("AL-DSGD, worst leaders{bound}"),
            al_dsgd.rho_worst,
        )?;
    }
    if let Some(RotationAnalysis {
        relabelings,
        rho,
        rho_random,
        ..
    }) = &analysis.rotation
    {
        rho_row(
            out,
            &format!("D-PSGD, {} copies in turn", relabelings.len()),
            *rho,
        )?;
        if let Some(rho) = rho_random {
            rho_row(
                out,
                &format!("AL-DSGD, {} copies in turn", relabelings.len()),
                *rho,
            )?;
        }
    }
    let weak = &analysis.dpsgd.without_positive_diagonal;
    if !weak.is_empty() {
        writeln!(
            out,
            "\n  Own weight 0 or less with the optimal alpha: {}.\n  \
             The paper's Algorithm 1, as written, scales steps by that weight: there it\n  \
             stands still or climbs. Metropolis weights are always positive.",
            named(weak)
        )?;
    }
    if let Some(rotation) = &analysis.rotation {
        writeln!(
            out,
            "\n  Over a turn of {}, expected degrees have variance {:.4}, and the mean\n  \
             Laplacian has lambda_2 {:.6}.",
            count_of(rotation.relabelings.len(), "copy", "copies"),
            rotation.degree_variance,
            rotation.lambda2_mean
        )?;
    }
    Ok(())
}

fn contraction_header(out: &mut impl Write) -> Result<()> {
    Ok(writeln!(
        out,
        "  {:<34}{:>9}{:>11}{:>10}{:>9}",
        "", "alpha", "rho", "gap", "rounds"
    )?)
}

fn contraction_row(out: &mut impl Write, name: &str, row: &Contraction) -> Result<()> {
    let alpha = row
        .alpha
        .map_or(String::new(), |alpha| format!("{alpha:.4}"));
    let rounds = row
        .mixing_rounds
        .map_or("never".into(), |rounds| rounds.to_string());
    Ok(writeln!(
        out,
        "  {name:<34}{alpha:>9}{:>11.6}{:>10.6}{rounds:>9}",
        row.rho, row.spectral_gap
    )?)
}

/// A row of which rho alone is known.
fn rho_row(out: &mut impl Write, name: &str, rho: f64) -> Result<()> {
    contraction_row(out, name, &Contraction::from_rho(rho))
}

fn matcha_name(matcha: &MatchaAnalysis) -> String {
    format!("MATCHA, budget {}", matcha.budget)
}

fn matchings(out: &mut impl Write, analysis: &Analysis, matcha: &MatchaAnalysis) -> Result<()> {
    writeln!(
        out,
        "\nMATCHA, budget {}: {:.2} of {} links are up in an average round.\n\
         {} is {:.6}; no probabilities reach more than\n{:.6}.\n",
        matcha.budget,
        matcha.expected_links,
        analysis.edges,
        if analysis.connected {
            "lambda_2 of the expected graph"
        } else {
            "The smallest lambda_2 of any piece"
        },
        matcha.lambda2,
        matcha.lambda2_upper_bound
    )?;
    writeln!(out, "  matching  probability  links")?;
    for (j, (links, p)) in analysis
        .matchings
        .iter()
        .zip(&matcha.probabilities)
        .enumerate()
    {
        // A tiny budget has tiny probabilities, which are not none.
        let p = if *p > 0.0 && *p < 5e-5 {
            format!("{p:.2e}")
        } else {
            format!("{p:.4}")
        };
        writeln!(out, "  {j:>8}  {p:>11}  {}", link_list(links, 55))?;
    }
    published(out, &matcha.published_theorem1)
}

/// Theorem 1 of the AL-DSGD paper, to be compared with what holds.
fn published(out: &mut impl Write, theorem: &Theorem1) -> Result<()> {
    let asks = match theorem.alpha {
        Some((low, high)) => {
            let w = theorem.w_best_below;
            format!("alpha between {low:.4} and {high:.4}, w_best below {w:.5}")
        }
        None if theorem.lambda_min > 0.0 => "what no alpha fulfils: its zeta is 0".into(),
        None => "a connected graph of two workers or more".into(),
    };
    writeln!(
        out,
        "\n  Theorem 1 of the AL-DSGD paper, as printed, asks for\n  {asks}."
    )?;
    if theorem.alpha.is_some() && !theorem.alpha_within_limit {
        let limit = theorem.alpha_limit;
        writeln!(
            out,
            "  Its proof also needs alpha <= {limit:.4}, which it does not say."
        )?;
    }
    Ok(())
}

fn leaders(
    out: &mut impl Write,
    al_dsgd: &LeaderAnalysis,
    matcha: Option<&MatchaAnalysis>,
) -> Result<()> {
    writeln!(
        out,
        "\nAL-DSGD, w_best {} and w_degree {}:\n",
        al_dsgd.weights.best, al_dsgd.weights.degree
    )?;
    let mut line = |name: &str, value: String| writeln!(out, "  {name:<49}{value}");
    line(
        "safe whatever the leaders: w_best + w_degree <",
        format!(" {:.5}", al_dsgd.w_safe),
    )?;
    if let Some(leaders) = matcha.and_then(|matcha| matcha.al_dsgd.as_ref()) {
        line("the same over MATCHA", format!(" {:.5}", leaders.w_safe))?;
    }
    line(
        "part of a step that counts (sound, released)",
        format!(" {:.4}", al_dsgd.step_factor),
    )?;
    line(
        "the same as written",
        format!(" {:.4}", al_dsgd.step_factor_written),
    )?;
    line(
        "effective number of workers",
        format!(" {:.2}", al_dsgd.effective_workers),
    )?;
    line(
        "the same as written",
        format!(" {:.2}", al_dsgd.effective_workers_written),
    )?;
    line(
        "how unequally a round counts them, |A'1 - 1|",
        format!(" {:.4}", al_dsgd.mean_drift),
    )?;
    let limit = |value: Option<f64>| value.map_or("none".into(), |value| format!("{value:.4}"));
    let (printed, proved) = (
        al_dsgd.published_step_limit,
        al_dsgd.published_step_limit_proved,
    );
    line(
        "Theorem 2's largest gamma L, as printed",
        format!(" {}", limit(printed)),
    )?;
    line(
        "the same, as its proof (which has gaps) needs it",
        format!(" {}", limit(proved)),
    )?;
    if matcha.is_none() {
        published(out, &al_dsgd.published_theorem1)?;
    }
    Ok(())
}

fn workers(out: &mut impl Write, graph: &Graph, analysis: &Analysis) -> Result<()> {
    let degree = analysis
        .rotation
        .as_ref()
        .map(|rotation| &rotation.expected_degrees);
    let influence = analysis.al_dsgd.as_ref().map(|al_dsgd| &al_dsgd.influence);
    let column = |shown: bool, name: &str| {
        if shown {
            format!("{name:>11}")
        } else {
            String::new()
        }
    };
    writeln!(
        out,
        "\n  worker  degree{}{}  neighbors",
        column(degree.is_some(), "in a turn"),
        column(influence.is_some(), "influence"),
    )?;
    for worker in 0..analysis.nodes {
        let cell = |values: Option<&Vec<f64>>, digits: usize| {
            values.map_or(String::new(), |values| {
                format!("{:>11.*}", digits, values[worker])
            })
        };
        writeln!(
            out,
            "  {worker:>6}  {:>6}{}{}  {}",
            analysis.degrees[worker],
            cell(degree, 2),
            cell(influence, 4),
            shortened(graph.neighbors(worker), 7)
        )?;
    }
    Ok(())
}

/// As many links as fit into `width`.
fn link_list(links: &[(usize, usize)], width: usize) -> String {
    let names: Vec<String> = links.iter().map(|(u, v)| format!("{u}-{v}")).collect();
    let all = names.join(" ");
    if all.len() <= width {
        return all;
    }
    let end = format!(" ... {} in all", names.len());
    let fitting = (0..names.len()).rev().map(|shown| names[..shown].join(" "));
    let fitting = fitting
        .into_iter()
        .find(|list| list.len() + end.len() <= width);
    fitting.unwrap_or_default() + &end
}

fn count(n: usize, thing: &str) -> String {
    count_of(n, thing, &format!("{thing}s"))
}

fn count_of(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// `worker 3` or `workers 1, 3, 7`.
fn named(workers: &[usize]) -> String {
    let noun = if workers.len() == 1 {
        "worker"
    } else {
        "workers"
    };
    format!("{noun} {}", shortened(workers, 8))
}

fn shortened(numbers: &[usize], most: usize) -> String {
    if numbers.is_empty() {
        return "none".into();
    }
    let shown: Vec<String> = numbers.iter().take(most).map(usize::to_string).collect();
    let more = if numbers.len() > most {
        format!(" and {} more", numbers.len() - most)
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(", "))
}
