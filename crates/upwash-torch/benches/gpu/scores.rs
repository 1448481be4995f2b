//! Compares scores of models between GPU and CPU.

use crate::setup::{F32, Table, config, cuda_engine, prepare, run_to_end};
use std::sync::Arc;
use upwash::RowIndex;
use upwash::engine::{Engine, Split};
use upwash_torch::{TorchCpuModel, TorchNetwork};

/// Checks that GPU and CPU give the same models the same scores.
pub(crate) fn scores() {
    let mut table = Table(true);
    for model in ["resnet20", "thin-resnet50"] {
        let experiment = prepare(&config(model, "name = \"dpsgd\"", 16, 20, ""));
        let mut gpu = cuda_engine(&experiment, F32);
        run_to_end(&experiment, &mut gpu);
        let network = TorchNetwork::new(experiment.network.clone());
        let model_on_cpu = TorchCpuModel::new(Arc::new(network), experiment.network.input);
        let mut cpu = experiment.cpu_engine(Arc::new(model_on_cpu));
        cpu.restore(&gpu.state().expect("the engine should not fail")).expect("the state should fit the engine");
        let (a, b) = (
            cpu.score(RowIndex(3), Split::Test).expect("the engine should not fail"),
            gpu.score(RowIndex(3), Split::Test).expect("the engine should not fail"),
        );
        let difference = (a.loss / b.loss - 1.0).abs();
        let same = difference < 1e-4 && a.correct.abs_diff(b.correct) <= 1;
        let what = format!("{model}: same score on CPU and GPU, {} and {} correct", a.correct, b.correct);
        table.line(&what, &format!("{difference:.1e}"), same);
    }
    if !table.0 {
        std::process::exit(1);
    }
}
