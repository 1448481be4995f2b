//! Which engine trains, and where.

use anyhow::Result;
use std::sync::Arc;
use upwash::engine::Engine;
use upwash::experiment::Experiment;
use upwash_burn::BurnNetwork;

/// `--engine`, `--device` and what goes with them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EngineArgs {
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
    pub(crate) fn standard() -> Self {
        Self {
            engine: EngineName::Burn,
            device: DeviceName::Cpu,
            precision: PrecisionName::Bf16,
            streams: None,
            eager: false,
        }
    }

    /// All workers of an experiment.
    pub(crate) fn build(&self, experiment: &Experiment) -> Result<Box<dyn Engine>> {
        match (self.engine, self.device) {
            (EngineName::Burn, DeviceName::Cpu) => {
                let network = BurnNetwork::new(experiment.network.clone());
                Ok(Box::new(experiment.fleet(Arc::new(network))))
            }
            (EngineName::Burn, DeviceName::Cuda(_)) => {
                anyhow::bail!("burn computes on the CPU: add `--engine torch` for a GPU")
            }
            (EngineName::Torch, device) => self.torch(device, experiment),
        }
    }

    #[cfg(feature = "torch")]
    fn torch(&self, device: DeviceName, experiment: &Experiment) -> Result<Box<dyn Engine>> {
        use upwash_torch::{CudaFleet, CudaOptions, OnCpu, Precision, TorchNetwork};
        let network = TorchNetwork::new(experiment.network.clone());
        let DeviceName::Cuda(device) = device else {
            let model = OnCpu::new(Arc::new(network), experiment.network.input);
            return Ok(Box::new(experiment.fleet(Arc::new(model))));
        };
        let options = CudaOptions {
            device,
            precision: match self.precision {
                PrecisionName::Bf16 => Precision::Bf16,
                PrecisionName::Tf32 => Precision::Tf32,
                PrecisionName::F32 => Precision::F32,
            },
            streams: self.streams.map(Into::into),
            eager: self.eager,
        };
        Ok(Box::new(CudaFleet::new(experiment, &network, options)?))
    }

    #[cfg(not(feature = "torch"))]
    fn torch(&self, _: DeviceName, _: &Experiment) -> Result<Box<dyn Engine>> {
        let Self {
            precision,
            streams,
            eager,
            ..
        } = self;
        let _ = (precision, streams, eager);
        anyhow::bail!(
            "this program was built without libtorch: scripts/install-torch.sh gets it and builds \
             one that has it"
        )
    }
}
