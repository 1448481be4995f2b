//! Helpers for engine tests: single-worker steps, snapshots, rows and plans.

use upwash::RowIndex;
use upwash::algorithm::{Plan, RowPlan, WorkerPlan};
use upwash::engine::MixOptions;
use upwash::engine::{Engine, GradientTask, State};
use upwash::run::{ControlFlow, Event, Observer, Snapshot, TakeSnapshot};

/// An observer that keeps the snapshot between any two rounds and never stops a run.
#[derive(Default)]
pub struct Archive(pub Vec<Snapshot>);

impl Observer for Archive {
    fn observe(&mut self, _: &Event) -> ControlFlow {
        ControlFlow::Continue
    }

    fn between_rounds(&mut self, _: u64, snapshot: &mut TakeSnapshot<'_>) -> ControlFlow {
        self.0.push(snapshot().expect("snapshot failed"));
        ControlFlow::Continue
    }
}

/// The state of an engine's only worker after each of `steps` plain SGD steps.
pub fn plain_steps(engine: &mut dyn Engine, steps: u64, rate: f64) -> Vec<State> {
    let step = |batch| {
        let tasks = [Some(GradientTask { batch, rate })];
        engine.step(&tasks).expect("step failed");
        let plan = RowPlan { row: RowIndex(0), messages: vec![], plan: Plan::alone() };
        let options = MixOptions::default();
        engine.exchange(&[plan], vec![], options).expect("exchange failed");
        engine.state().expect("state is available")
    };
    (0..steps).map(step).collect()
}

/// Converts plans to engine rows if all workers are in one process.
pub fn row_plans(plans: &[WorkerPlan]) -> Vec<RowPlan> {
    let plans = plans.iter().cloned();
    plans.map(WorkerPlan::in_one_process).collect()
}

/// The first `count` rows of an engine.
pub fn rows(count: usize) -> Vec<RowIndex> {
    (0..count).map(RowIndex).collect()
}

/// The largest absolute difference between the arrays of this name in two states.
pub fn distance(one: &State, other: &State, name: &str) -> f32 {
    let array = |state: &State| -> Vec<f32> {
        let found = state.iter().find(|(found, _)| found == name);
        found.expect("array is in the state").1.clone()
    };
    let (one, other) = (array(one), array(other));
    assert_eq!(one.len(), other.len(), "{name}");
    let pairs = one.iter().zip(&other);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
