//! Which engine trains, and where.

use crate::output::note;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use upwash::engine::{Engine, EngineSpec, native_engine};

/// `--engine`, `--device` and the options of the GPU engine.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct EngineArgs {
    /// What computes gradients. `auto` takes the GPU where the program has libtorch and the machine has a GPU, and
    /// otherwise native, which is part of the program and runs on the CPU; a note says which
    #[arg(long, value_enum, default_value_t)]
    engine: EngineName,
    /// Where torch computes: cpu, cuda or cuda:N [default: the first GPU if there is one]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceName>,
    /// Precision of matrix products on a GPU; parameters and mixing are always f32 [default: bf16]
    #[arg(long, value_enum)]
    precision: Option<PrecisionName>,
    /// How many workers a GPU computes side by side; fewer need less memory [default: all]
    #[arg(long, value_name = "N")]
    streams: Option<std::num::NonZeroUsize>,
    /// On a GPU, launch every operation of a round anew instead of replaying a recorded graph
    #[arg(long)]
    eager: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum EngineName {
    #[default]
    Auto,
    Native,
    Torch,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum PrecisionName {
    #[default]
    Bf16,
    Tf32,
    F32,
}

const NO_TORCH: &str = "this program was built without libtorch, which --engine torch needs: scripts/install-torch.sh \
                        installs it and builds a program that has it";

/// `cpu`, or a GPU by its index.
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
                let index = text.strip_prefix("cuda:").ok_or_else(wrong)?;
                index.parse().map(Self::Cuda).map_err(|_| wrong())
            }
        }
    }
}

/// The engine and device that the arguments select on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selected {
    Native,
    Torch(DeviceName),
}

impl EngineArgs {
    /// Resolves `auto`, and refuses options that the selected engine would ignore.
    fn selected(&self) -> Result<Selected> {
        let selected = match (self.engine, self.device) {
            (EngineName::Auto, None) => match has_gpu() {
                true => Selected::Torch(DeviceName::Cuda(0)),
                false => Selected::Native,
            },
            (EngineName::Auto, Some(DeviceName::Cuda(index))) => Selected::Torch(DeviceName::Cuda(index)),
            (EngineName::Auto, Some(DeviceName::Cpu)) => Selected::Native,
            (EngineName::Native, None | Some(DeviceName::Cpu)) => Selected::Native,
            (EngineName::Native, Some(DeviceName::Cuda(_))) => {
                bail!("--engine native computes on the CPU: use `--engine torch` for a GPU")
            }
            (EngineName::Torch, None) if has_gpu() => Selected::Torch(DeviceName::Cuda(0)),
            (EngineName::Torch, device) => Selected::Torch(device.unwrap_or(DeviceName::Cpu)),
        };
        let gpu_options =
            [("--precision", self.precision.is_some()), ("--streams", self.streams.is_some()), ("--eager", self.eager)];
        if let (Some((option, _)), false) = (gpu_options.iter().find(|option| option.1), is_gpu(selected)) {
            bail!(
                "{option} is an option of the GPU engine, but this run is on the CPU: add `--device cuda`, or leave it out"
            );
        }
        Ok(selected)
    }

    /// An engine with all workers of `spec`.
    pub fn build(&self, spec: &EngineSpec) -> Result<Box<dyn Engine>> {
        match self.selected()? {
            Selected::Native => Ok(native_engine(spec)?),
            Selected::Torch(device) => self.torch(device, spec),
        }
    }

    /// Says once which engine and device the program chose, if the user did not. For runs that have begun: an error is
    /// clearer alone.
    pub fn note_choice(&self) -> Result<()> {
        let is_chosen = match self.engine {
            EngineName::Auto => true,
            EngineName::Native => false,
            EngineName::Torch => self.device.is_none(),
        };
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        if is_chosen && !IS_SAID.swap(true, Ordering::Relaxed) {
            note!("engine: {}", self.display_name()?);
        }
        Ok(())
    }

    /// Refuses an engine that this program does not have, and a spec that needs more memory than this machine has. Only
    /// building the engine tells about a GPU.
    pub fn check(&self, spec: &EngineSpec) -> Result<()> {
        match self.selected()? {
            Selected::Torch(_) if !cfg!(feature = "torch") => bail!(NO_TORCH),
            Selected::Torch(DeviceName::Cuda(_)) => Ok(()),
            Selected::Native | Selected::Torch(DeviceName::Cpu) => Ok(spec.check_memory()?),
        }
    }

    #[cfg(feature = "torch")]
    fn torch(&self, device: DeviceName, spec: &EngineSpec) -> Result<Box<dyn Engine>> {
        use upwash_torch::{CudaEngine, TorchNetwork, cpu_engine};
        match device {
            DeviceName::Cpu => {
                spec.check_memory()?;
                Ok(cpu_engine(spec)?)
            }
            DeviceName::Cuda(device) => {
                let network = TorchNetwork::new(spec.network.clone());
                let engine = CudaEngine::new(spec, &network, self.cuda_options(device))?;
                if let Some(notice) = engine.notice() {
                    crate::output::tell!("{}", crate::output::warning(notice));
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
            precision: match self.precision.unwrap_or_default() {
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
        if let Selected::Torch(DeviceName::Cuda(device)) = self.selected()? {
            use upwash_torch::{MemoryEstimate, TorchNetwork};
            let network = TorchNetwork::new(spec.network.clone());
            let needs = MemoryEstimate::predicted(spec, &network, self.cuda_options(device))?;
            if self.precision.unwrap_or_default() != PrecisionName::Bf16 && !needs.measured {
                note!("note: in f32 and tf32 libraries can need much more memory; only a GPU can tell");
            }
            return Ok(needs.parts());
        }
        Ok(spec.memory())
    }

    /// Whether the run is on a GPU.
    pub fn is_gpu(&self) -> Result<bool> {
        Ok(is_gpu(self.selected()?))
    }

    /// Engine, device and precision, as they are recorded with results.
    pub fn display_name(&self) -> Result<String> {
        Ok(match self.selected()? {
            Selected::Native => format!("native, cpu, f32, {}", upwash::engine::Instructions::detect()),
            Selected::Torch(DeviceName::Cpu) => "torch, cpu, f32".into(),
            Selected::Torch(DeviceName::Cuda(index)) => {
                let precision = format!("{:?}", self.precision.unwrap_or_default()).to_lowercase();
                let gpus = gpu_names().join(" or ");
                let gpus = if gpus.is_empty() { gpus } else { format!(", {gpus}") };
                format!("torch, cuda:{index}, {precision}{gpus}")
            }
        })
    }

    #[cfg(not(feature = "torch"))]
    fn torch(&self, _: DeviceName, _: &EngineSpec) -> Result<Box<dyn Engine>> {
        bail!(NO_TORCH)
    }
}

fn is_gpu(selected: Selected) -> bool {
    matches!(selected, Selected::Torch(DeviceName::Cuda(_)))
}

/// Whether the program can use a GPU of this machine.
#[cfg(feature = "torch")]
fn has_gpu() -> bool {
    matches!(upwash_torch::Cuda::detect(), upwash_torch::Cuda::Devices(1..))
}

#[cfg(not(feature = "torch"))]
fn has_gpu() -> bool {
    false
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
