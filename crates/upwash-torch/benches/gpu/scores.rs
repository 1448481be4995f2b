//! How good models are, on both.

use crate::setup::{F32, Table, complete, config, fleet, prepare};
use std::sync::Arc;
use upwash::RowIndex;
use upwash::engine::{Engine, Split};
use upwash_torch::{TorchCpuModel, TorchNetwork};
/// GPU and CPU score the same models alike.
pub(crate) fn scores() {
    let mut table = Table(true);
    for model in ["resnet20", "thin-resnet50"] {
        let experiment = prepare(&config(model, "name = \"dpsgd\"", 16, 20, ""));
        let mut gpu = fleet(&experiment, F32);
        complete(&experiment, &mut gpu);
        let network = TorchNetwork::new(experiment.network.clone());
        let model_on_cpu = TorchCpuModel::new(Arc::new(network), experiment.network.input);
        let mut cpu = experiment.cpu_engine(Arc::new(model_on_cpu));
        cpu.restore(&gpu.state().expect("an engine that works")).expect("a state that fits");
        let (a, b) = (
            cpu.score(RowIndex(3), Split::Test).expect("an engine that works"),
            gpu.score(RowIndex(3), Split::Test).expect("an engine that works"),
        );
        let apart = (a.loss / b.loss - 1.0).abs();
        let alike = apart < 1e-4 && a.correct.abs_diff(b.correct) <= 1;
        let what = format!("{model}: a model is scored alike, {} and {} right", a.correct, b.correct);
        table.line(&what, &format!("{apart:.1e}"), alike);
    }
    if !table.0 {
        std::process::exit(1);
    }
}
