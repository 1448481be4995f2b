//! What a model file says about its model: everything that is needed to use it elsewhere.

use super::{DescriptionError, LayerSpec, ModelFile, ModelFileError, Network};
use crate::data::Scaling;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

/// The network of a model, how its inputs are scaled, and its classes: the metadata of `model.safetensors`, as JSON
/// under the key `upwash`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The name of the network in configurations.
    pub model: String,
    /// The data set that it was trained on.
    pub data: String,
    /// The algorithm that trained it.
    pub algorithm: String,
    /// The channels, height and width of an image.
    pub input: [usize; 3],
    /// The number of classes.
    pub classes: usize,
    /// The names of the classes, if they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// How pixels are scaled.
    pub scaling: Scaling,
    /// The layers of the network; empty for a model that is no list of layers.
    pub layers: Vec<LayerSpec>,
}

impl ModelInfo {
    /// The layers of a network, as they are stored.
    pub fn layers_of(network: &Network) -> Vec<LayerSpec> {
        network.layers.iter().map(LayerSpec::from).collect()
    }

    /// The fields of the metadata.
    pub fn fields(&self) -> Vec<(String, serde_json::Value)> {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(fields)) => fields.into_iter().collect(),
            _ => vec![],
        }
    }

    /// Reads the metadata of a file.
    pub fn of_file(file: &ModelFile) -> Result<Self, ModelFileError> {
        let format = |what: String| file.format_error(what);
        let (_, header) = SafeTensors::read_metadata(file.bytes()).map_err(|error| format(error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|all| all.get("upwash"));
        let about = about.ok_or_else(|| format("it does not say which network it belongs to".into()))?;
        serde_json::from_str(about).map_err(|error| {
            format(format!("its metadata lacks the network, the scaling or the classes, which runs write now: {error}"))
        })
    }

    /// The network.
    pub fn network(&self) -> Result<Network, DescriptionError> {
        if self.layers.is_empty() {
            let problem = "it is no list of layers, so only the program that trained it can use it".into();
            return Err(DescriptionError { place: format!("model `{}`", self.model), problem });
        }
        Network::described(self.input, self.classes, &self.layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSpec;

    #[test]
    fn stored_layers_of_every_built_in_network_build_it_again() {
        for name in ["softmax", "mlp:64,32", "cnn", "resnet20", "thin-resnet50", "resnet50", "wrn28-10"] {
            let network = name.parse::<ModelSpec>().unwrap().network([3, 32, 32], 10);
            let json = serde_json::to_string(&ModelInfo::layers_of(&network)).unwrap();
            let layers: Vec<LayerSpec> = serde_json::from_str(&json).unwrap();
            assert_eq!(Network::described([3, 32, 32], 10, &layers).unwrap(), network, "{name}");
        }
    }
}
