//! Which engine trains, and where.

use anyhow::Result;
use std::sync::Arc;
use upwash::engine::{CpuEngine, Engine, EngineSpec};
use upwash_burn::BurnNetwork;

/// `--engine`, `--device` and what goes with them.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Who computes gradients: burn (part of the program) or torch (built with `--features torch`)
    #[arg(long, value_enum, default_value_t = EngineName::Burn)]
    engine: EngineName,
    /// Where torch computes: cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceName,
    /// How numbers are multiplied on a GPU; parameters and mixing are always f32
    #[arg(long, value_enum, default_value_t = PrecisionName::Bf16)]
    precision: PrecisionName,
    /// How many workers a GPU computes side by side; fewer need less memory [default: all]
    #[arg(long, value_name = "N")]
    streams: Option<std::num::NonZeroUsize>,
    /// Launch every operation of a round on the GPU anew instead of replaying a recording
    #[arg(long)]
    eager: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EngineName {
    Burn,
    Torch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PrecisionName {
    Bf16,
    Tf32,
    F32,
}

/// `cpu`, or a GPU by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceName {
    Cpu,
    Cuda(usize),
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write cpu, cuda or cuda:N".to_string();
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(wrong)?;
                number.parse().map(Self::Cuda).map_err(|_| wrong())
            }
        }
    }
}

impl EngineArgs {
    /// What is part of every program.
    pub fn standard() -> Self {
        Self {
            engine: EngineName::Burn,
            device: DeviceName::Cpu,
            precision: PrecisionName::Bf16,
            streams: None,
            eager: false,
        }
    }

    /// All workers of a spec.
    pub fn build(&self, spec: &EngineSpec) -> Result<Box<dyn Engine>> {
        match (self.engine, self.device) {
            (EngineName::Burn, DeviceName::Cpu) => {
                let network = BurnNetwork::new(spec.network.clone());
                Ok(Box::new(CpuEngine::new(Arc::new(network), spec)))
            }
            (EngineName::Burn, DeviceName::Cuda(_)) => {
                anyhow::bail!("burn computes on the CPU: add `--engine torch` for a GPU")
            }
            (EngineName::Torch, device) => self.torch(device, spec),
        }
    }

    #[cfg(feature = "torch")]
    fn torch(&self, device: DeviceName, spec: &EngineSpec) -> Result<Box<dyn Engine>> {
        use upwash_torch::{CudaEngine, TorchCpuModel, TorchNetwork};
        let network = TorchNetwork::new(spec.network.clone());
        match device {
            DeviceName::Cpu => {
                let model = TorchCpuModel::new(Arc::new(network), spec.network.input);
                Ok(Box::new(CpuEngine::new(Arc::new(model), spec)))
            }
            DeviceName::Cuda(device) => {
                let engine = CudaEngine::new(spec, &network, self.cuda_options(device))?;
                if let Some(notice) = engine.notice() {
                    crate::output::tell!("warning: {notice}");
                }
                Ok(Box::new(engine))
            }
        }
    }

    #[cfg(feature = "torch")]
    fn cuda_options(&self, device: usize) -> upwash_torch::CudaOptions {
        use upwash_torch::Precision;
        upwash_torch::CudaOptions {
            device,
            precision: match self.precision {
                PrecisionName::Bf16 => Precision::Bf16,
                PrecisionName::Tf32 => Precision::Tf32,
                PrecisionName::F32 => Precision::F32,
            },
            streams: self.streams.map(Into::into),
            eager: self.eager,
        }
    }

    /// What a spec will need, by its parts, in bytes: on a GPU of the GPU's memory.
    pub fn memory(&self, spec: &EngineSpec) -> Result<Vec<(&'static str, u64)>> {
        #[cfg(feature = "torch")]
        if let (EngineName::Torch, DeviceName::Cuda(device)) = (self.engine, self.device) {
            use upwash_torch::{MemoryEstimate, TorchNetwork};
            let network = TorchNetwork::new(spec.network.clone());
            let needs = MemoryEstimate::predicted(spec, &network, self.cuda_options(device))?;
            if self.precision != PrecisionName::Bf16 && !needs.measured {
                crate::output::tell!("note: in f32 and tf32 libraries can need much more; only a GPU can tell");
            }
            return Ok(needs.parts());
        }
        let workers = spec.starts.len() as u64;
        let layout = spec.network.layout();
        let vectors = 2 + spec.optimizer.state_vectors().len() as u64 + spec.state_vectors.len() as u64;
        let numbers = vectors * layout.parameter_count() as u64 + layout.statistic_count() as u64;
        let images = [&spec.data.train, &spec.data.test];
        let data: usize = images.iter().map(|images| images.pixels.len()).sum();
        // One gradient and one piece of a test at a time on every thread.
        let threads = rayon::current_num_threads() as u64;
        let activations = spec.network.activations() as u64 * 4;
        let batch = (spec.sampler.batch_size() as u64).max(256);
        Ok(vec![
            ("models, steps and what algorithms keep", 4 * workers * numbers),
            ("images", data as u64),
            ("gradients under way", threads * batch * activations),
        ])
    }

    /// Whether a GPU computes.
    pub fn is_gpu(&self) -> bool {
        matches!((self.engine, self.device), (EngineName::Torch, DeviceName::Cuda(_)))
    }

    /// As results are kept with it.
    pub fn display_name(&self) -> String {
        match (self.engine, self.device) {
            (EngineName::Burn, _) => "burn, cpu, f32".into(),
            (EngineName::Torch, DeviceName::Cpu) => "torch, cpu, f32".into(),
            (EngineName::Torch, DeviceName::Cuda(number)) => {
                let words = format!("torch, cuda:{number}, {:?}", self.precision).to_lowercase();
                let name = gpu_names().join(" or ");
                match name.is_empty() {
                    true => words,
                    false => format!("{words}, {name}"),
                }
            }
        }
    }

    #[cfg(not(feature = "torch"))]
    fn torch(&self, _: DeviceName, _: &EngineSpec) -> Result<Box<dyn Engine>> {
        let _ = (self.precision, self.streams, self.eager);
        anyhow::bail!(
            "this program was built without libtorch: scripts/install-torch.sh gets it and builds \
             one that has it"
        )
    }
}

/// The GPUs of this machine, each kind once, where the driver tells.
fn gpu_names() -> Vec<String> {
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus");
    let name = |folder: std::fs::DirEntry| {
        let text = std::fs::read_to_string(folder.path().join("information")).ok()?;
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(model.trim().to_owned())
    };
    let found = gpus.into_iter().flatten().flatten().filter_map(name);
    let kinds: std::collections::BTreeSet<String> = found.collect();
    kinds.into_iter().collect()
}
