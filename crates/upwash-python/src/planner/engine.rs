//! An engine without vectors: it writes down what an engine would compute, for a caller that owns the vectors.

use super::Reply;
use super::dense::{Recorded, Work};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender};
use upwash::algorithm::{Outgoing, RowPlan};
use upwash::engine::{EngineError, GradientTask, MessagesToMeasure, MixOptions, RemoteRow, Score, Split};
use upwash::model::{Layout, Replica, State};
use upwash::{Engine, RowIndex};

/// What Python asks of the thread of a run.
pub(super) enum Command {
    /// Begin the next round.
    Begin,
    /// Finish the round with these losses, and plan its exchanges.
    Finish { losses: Vec<Option<f64>>, examples: usize, rate: f64 },
    /// The answer to a question.
    Answer(Vec<f64>),
    /// Return the progress of the run.
    Progress,
    /// End the run: `None` if it ends early.
    End(Option<Replica>),
}

/// Something that only the owner of the vectors can measure.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Question {
    /// The root mean square distance of these rows' models from their average.
    ConsensusDistance(Vec<RowIndex>),
    /// The distance between the messages of each pair of rows, where row i sends the i-th message.
    Distances { messages: Vec<Outgoing>, pairs: Vec<(RowIndex, RowIndex)> },
}

/// The engine of a run whose vectors are elsewhere.
pub(super) struct PlanningEngine {
    pub(super) workers: usize,
    pub(super) layout: Layout,
    pub(super) server: Option<RowIndex>,
    /// Whether the algorithm measures messages between steps and exchanges.
    pub(super) measures: bool,
    pub(super) state_vectors: usize,
    /// What has been recorded since the last message to Python.
    pub(super) recorded: Vec<Recorded>,
    pub(super) commands: Rc<Receiver<Command>>,
    pub(super) replies: SyncSender<Reply>,
    /// The averaged model, once Python has sent it.
    pub(super) averaged: Option<Replica>,
    /// Whether Python waits for an answer, so that it can be asked something.
    pub(super) is_attended: bool,
}

impl PlanningEngine {
    /// Takes what has been recorded.
    pub(super) fn take_work(&mut self, question: Option<Question>) -> Work {
        let recorded = std::mem::take(&mut self.recorded);
        let sizes = (self.workers, self.state_vectors);
        Work::new(&recorded, sizes, self.server, self.measures, self.layout.parameter_count(), question)
    }

    /// Lets Python carry out what has been recorded, and measure.
    fn ask(&mut self, question: Question) -> Result<Vec<f64>, EngineError> {
        let gone = || EngineError::Unsupported("the owner of the models is gone: nothing can be measured".into());
        let work = self.take_work(Some(question));
        self.replies.send(Reply::Work(Box::new(work), None)).map_err(|_| gone())?;
        match self.commands.recv() {
            Ok(Command::Answer(values)) => Ok(values),
            _ => Err(gone()),
        }
    }

    fn unsupported<T>(what: &str) -> Result<T, EngineError> {
        Err(EngineError::Unsupported(format!("a planner has no models: it cannot {what}")))
    }
}

impl Engine for PlanningEngine {
    fn workers(&self) -> usize {
        self.workers
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn is_external(&self) -> bool {
        true
    }

    fn step(&mut self, _: &[Option<GradientTask>]) -> Result<Vec<Option<Score>>, EngineError> {
        Self::unsupported("compute gradients")
    }

    fn exchange(&mut self, plans: &[RowPlan], _: Vec<RemoteRow>, options: MixOptions) -> Result<(), EngineError> {
        self.recorded.push(Recorded { plans: plans.to_vec(), options, statistics: None });
        Ok(())
    }

    fn write_outgoing(&mut self, _: RowIndex, _: &Outgoing, _: MixOptions, _: &mut [f32]) -> Result<(), EngineError> {
        Self::unsupported("send messages")
    }

    fn distances(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, EngineError> {
        let distances =
            self.ask(Question::Distances { messages: measured.messages.to_vec(), pairs: pairs.to_vec() })?;
        match distances.len() == pairs.len() {
            true => Ok(distances),
            false => Err(EngineError::Mismatch(format!("{} distances for {} pairs", distances.len(), pairs.len()))),
        }
    }

    fn mix_statistics(&mut self, weights: &[Vec<(RowIndex, f64)>], _: Vec<Vec<f32>>) -> Result<(), EngineError> {
        if let Some(last) = self.recorded.last_mut() {
            last.statistics = Some(weights.to_vec());
        }
        Ok(())
    }

    fn statistics(&mut self, _: RowIndex) -> Result<Vec<f32>, EngineError> {
        Ok(vec![])
    }

    fn score(&mut self, _: RowIndex, _: Split) -> Result<Score, EngineError> {
        Self::unsupported("score models")
    }

    fn average(&mut self, _: &[RowIndex]) -> Result<Replica, EngineError> {
        Ok(self.averaged.take().unwrap_or_default())
    }

    fn estimated(&mut self, _: RowIndex, _: Vec<f32>) -> Result<Replica, EngineError> {
        Self::unsupported("estimate statistics")
    }

    fn score_replica(&mut self, _: &Replica) -> Result<Score, EngineError> {
        Self::unsupported("score models")
    }

    fn consensus_distance(&mut self, rows: &[RowIndex]) -> Result<f64, EngineError> {
        if !self.is_attended {
            return Ok(f64::NAN);
        }
        let answer = self.ask(Question::ConsensusDistance(rows.to_vec()))?;
        Ok(answer.first().copied().unwrap_or(f64::NAN))
    }

    /// Its owner saves the vectors.
    fn state(&mut self) -> Result<State, EngineError> {
        Ok(vec![])
    }

    fn restore(&mut self, _: &State) -> Result<(), EngineError> {
        Ok(())
    }
}
