//! Reads models from safetensors files: `model.safetensors` of a run, or a file with the same tensors.

use super::{Layout, Replica, Slot};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The content of a safetensors file. Which network it belongs to is checked when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Why a model cannot be taken from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}; name a run that has ended, or the model.safetensors that it wrote", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not a safetensors file.
    #[error("{} is not a safetensors file of a model ({what}): a run writes one as model.safetensors", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file belongs to another network.
    #[error("{} does not fit the network: {what}; use the `model` and the data set that it was trained with", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The first difference.
        what: String,
    },
}

impl ModelFile {
    /// Reads a file. A run directory stands for its `model.safetensors`.
    pub fn read(path: &Path) -> Result<Self, ModelFileError> {
        let path = if path.is_dir() { path.join("model.safetensors") } else { path.to_owned() };
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(source) => Err(ModelFileError::Io { path, source }),
        }
    }

    /// The content of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The error for a file that is not as it should be.
    pub(super) fn format_error(&self, what: String) -> ModelFileError {
        ModelFileError::Format { path: self.path.clone(), what }
    }

    /// The model, whose tensors must be those of `layout`.
    pub fn replica(&self, layout: &Layout) -> Result<Replica, ModelFileError> {
        let path = || self.path.clone();
        let file = SafeTensors::deserialize(&self.bytes)
            .map_err(|error| ModelFileError::Format { path: path(), what: error.to_string() })?;
        let mismatch = |what| ModelFileError::Mismatch { path: path(), what };
        let known = || layout.parameters.iter().chain(&layout.statistics);
        for name in file.names() {
            // PyTorch counts batches for batch normalization without a momentum, which no network here uses.
            if !known().any(|slot| slot.name == name) && !name.ends_with("num_batches_tracked") {
                return Err(mismatch(format!("the network has no tensor `{name}`")));
            }
        }
        let vector = |slots: &[Slot]| slots.iter().map(|slot| tensor(&file, slot)).collect::<Result<Vec<_>, _>>();
        let parameters = vector(&layout.parameters).map_err(mismatch)?.concat();
        let statistics = vector(&layout.statistics).map_err(mismatch)?.concat();
        let replica = Replica { parameters, statistics };
        match replica.is_finite() {
            true => Ok(replica),
            false => Err(mismatch("it has values that are not finite".into())),
        }
    }
}

/// The values of a tensor. The error says how it differs from what the network needs.
fn tensor(file: &SafeTensors<'_>, slot: &Slot) -> Result<Vec<f32>, String> {
    let Slot { name, shape, .. } = slot;
    let tensor = file.tensor(name).map_err(|_| format!("it has no tensor `{name}`"))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("`{name}` is {:?} and not F32", tensor.dtype()));
    }
    if tensor.shape() != shape {
        return Err(format!("`{name}` has the shape {:?} in the file and {shape:?} in the network", tensor.shape()));
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSpec;

    fn file_of(bytes: Vec<u8>) -> ModelFile {
        ModelFile { path: "m.safetensors".into(), bytes }
    }

    #[test]
    fn written_models_are_read_back() {
        let network = ModelSpec::Cnn.network([1, 8, 8], 10);
        let layout = network.layout();
        let replica = Replica { parameters: network.start(3, 1), statistics: network.start_statistics() };
        let file = file_of(replica.to_safetensors(&layout, []).unwrap());
        assert_eq!(file.replica(&layout).unwrap(), replica);
    }

    #[test]
    fn other_files_are_refused_with_the_first_difference() {
        let [small, large] = ["mlp:4", "mlp:5"].map(|name| {
            let network = name.parse::<ModelSpec>().unwrap().network([1, 2, 2], 3);
            let replica = Replica { parameters: network.start(1, 0), statistics: vec![] };
            (network.layout(), replica)
        });
        let bytes = small.1.to_safetensors(&small.0, []).unwrap();
        let error = |bytes: &[u8], layout: &Layout| file_of(bytes.to_vec()).replica(layout).unwrap_err().to_string();
        assert!(error(&bytes, &large.0).contains("`1.weight` has the shape [4, 4] in the file and [5, 4]"));
        let softmax = ModelSpec::Softmax.network([1, 2, 2], 3).layout();
        assert!(error(&bytes, &softmax).contains("the network has no tensor `3."));
        assert!(error(&first_layer_of(&small), &small.0).contains("it has no tensor `3.weight`"));
        assert!(error(b"{}", &small.0).contains("is not a safetensors file"));
        assert!(error(&bytes[..bytes.len() - 8], &small.0).contains("is not a safetensors file"));
        let wild = Replica { parameters: vec![f32::NAN; small.1.parameters.len()], statistics: vec![] };
        assert!(error(&wild.to_safetensors(&small.0, []).unwrap(), &small.0).contains("not finite"));
    }

    fn first_layer_of((layout, replica): &(Layout, Replica)) -> Vec<u8> {
        let first = Layout { parameters: layout.parameters[..2].to_vec(), statistics: vec![] };
        replica.to_safetensors(&first, []).unwrap()
    }
}
