//! Lets all workers start from a given model.

use super::RunError;
use crate::algorithm::InitialValue;
use crate::engine::Engine;
use crate::experiment::Experiment;

/// Replaces the models that the engine has drawn, and what the algorithm derives from them, by the initial model of the
/// experiment, if it has one.
pub(super) fn load(experiment: &Experiment, engine: &mut dyn Engine) -> Result<(), RunError> {
    let Some(file) = &experiment.initial_model else {
        return Ok(());
    };
    let model = file.replica(engine.layout())?;
    let vectors = experiment.method.state_vectors();
    let is_model = |name: &str| vectors.iter().any(|vector| vector.name == name && vector.start == InitialValue::Model);
    let mut state = engine.state()?;
    for (name, array) in &mut state {
        let row = match name.as_str() {
            "statistics" => &model.statistics,
            name if name == "models" || is_model(name) => &model.parameters,
            _ => continue,
        };
        if !row.is_empty() {
            array.chunks_exact_mut(row.len()).for_each(|worker| worker.copy_from_slice(row));
        }
    }
    Ok(engine.restore(&state)?)
}
