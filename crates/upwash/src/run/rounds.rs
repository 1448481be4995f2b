//! The round loop: Algorithm 1 of the AL-DSGD paper, for every synchronous algorithm, engine and transport.

use super::RunError;
use super::Status;
use super::costs;
use super::session::{NextRound, Session};
use super::team::Team;
use crate::algorithm::Algorithm;
use crate::gossip::Gossip;

/// Runs rounds until there are no more, or something ends them.
pub(super) fn run<'a>(
    session: &mut Session<'a>,
    algorithm: &'a dyn Algorithm,
    team: &mut Team<'_>,
) -> Result<Status, RunError> {
    let mut gossip = Gossip::new(session.experiment, team.placement.clone());
    loop {
        // Serve or adopt a model, forget lost neighbors, wait for others, stop.
        let mut round = match session.next_round(algorithm, &mut gossip, team)? {
            NextRound::Run(round) => round,
            NextRound::End(status) => return Ok(status),
        };
        // With overlap, x leaves before the gradient, with the last round's loss.
        round.post_early(&mut gossip, team)?;
        // Every local worker's gradient and step. A run that diverges ends before that spreads.
        let tasks = round.gradient_tasks(session, team.engine.workers());
        let scores = team.engine.step(&tasks);
        if let Some(status) = session.observe_step(&round, &scores, team)? {
            return Ok(status);
        }
        for job in round.jobs() {
            // Send to and receive from neighbors: models, losses, degrees.
            let stats = round.stats_for(&job, session);
            let inbox = gossip.exchange(&job, stats, team.engine, team.transport)?;
            // Every worker's row of A and C, leaders included, from what it knows.
            let plans = gossip.plans(&job, &inbox);
            session.record(&plans);
            costs::observe(session, &round, &job, &inbox, &plans, team.width());
            // X' = A X - C U, all rows at once.
            gossip.apply(&job, plans, inbox, team.engine)?;
        }
        session.finish_round(&scores, team)?;
    }
}
