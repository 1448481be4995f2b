//! Models as flat vectors: the layout of their tensors, and the export to safetensors files.

use safetensors::tensor::{Dtype, SafeTensorError, TensorView};
use std::collections::{BTreeMap, HashMap};

/// A tensor within a flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The path of layer indices and the kind of tensor, for example `3.body.0.weight`.
    pub name: String,
    /// The dimensions of the tensor.
    pub shape: Vec<usize>,
    /// The offset of the tensor in the vector.
    pub offset: usize,
}

impl Slot {
    /// The number of elements of the tensor.
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of the tensor in a flat vector.
    pub fn of<'a>(&self, vector: &'a [f32]) -> &'a [f32] {
        &vector[self.offset..][..self.size()]
    }

    /// The elements of the tensor in a flat vector, mutably.
    pub fn of_mut<'a>(&self, vector: &'a mut [f32]) -> &'a mut [f32] {
        &mut vector[self.offset..][..self.size()]
    }
}

/// The layout of a model's tensors in its two flat vectors: parameters and running statistics.
///
/// ```
/// use upwash::model::Layout;
/// let layout = Layout::new([("weight".into(), vec![3, 2]), ("bias".into(), vec![3])], []);
/// assert_eq!(layout.parameters[1].offset, 6);
/// assert_eq!((layout.parameter_count(), layout.statistic_count()), (9, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The trained tensors, in order.
    pub parameters: Vec<Slot>,
    /// The running statistics of batch normalization, in order.
    pub statistics: Vec<Slot>,
}

impl Layout {
    /// Lays out tensors, given by name and shape, one after the other.
    pub fn new(
        parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
        statistics: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> Self {
        Self { parameters: slots(parameters), statistics: slots(statistics) }
    }

    /// The number of trained parameters.
    pub fn parameter_count(&self) -> usize {
        end(&self.parameters)
    }

    /// The number of running statistics.
    pub fn statistic_count(&self) -> usize {
        end(&self.statistics)
    }
}

/// Assigns consecutive offsets to tensors.
fn slots(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> Vec<Slot> {
    let mut offset = 0;
    let slot = |(name, shape)| {
        let slot = Slot { name, shape, offset };
        offset += slot.size();
        slot
    };
    tensors.into_iter().map(slot).collect()
}

fn end(slots: &[Slot]) -> usize {
    slots.last().map_or(0, |slot| slot.offset + slot.size())
}

/// The parameters and the running statistics of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replica {
    /// The trained parameters.
    pub parameters: Vec<f32>,
    /// The running statistics of batch normalization.
    pub statistics: Vec<f32>,
}

impl Replica {
    /// Whether all parameters and statistics are finite.
    pub fn is_finite(&self) -> bool {
        let mut all = self.parameters.iter().chain(&self.statistics);
        all.all(|number| number.is_finite())
    }

    /// Serializes the model as a safetensors file, which PyTorch and other libraries read. The file has every tensor by
    /// its name, and `about` as its metadata: one JSON object under the key `upwash`, because the order of several keys
    /// would be random.
    ///
    /// ```
    /// use upwash::model::{ModelSpec, Replica};
    /// let network = ModelSpec::Softmax.network([1, 2, 2], 3);
    /// let replica = Replica { parameters: network.start(1, 0), statistics: vec![] };
    /// let bytes = replica.to_safetensors(&network.layout(), [("model", "softmax".into())])?;
    /// let file = safetensors::SafeTensors::deserialize(&bytes)?;
    /// assert_eq!(file.tensor("1.weight")?.shape(), [3, 4]);
    /// # Ok::<(), safetensors::SafeTensorError>(())
    /// ```
    pub fn to_safetensors<'a>(
        &self,
        layout: &Layout,
        about: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
    ) -> Result<Vec<u8>, SafeTensorError> {
        let bytes = |vector: &[f32]| -> Vec<u8> { vector.iter().flat_map(|number| number.to_le_bytes()).collect() };
        let vectors = [(&layout.parameters, bytes(&self.parameters)), (&layout.statistics, bytes(&self.statistics))];
        let mut tensors = Vec::new();
        for (slots, bytes) in &vectors {
            for slot in slots.iter() {
                let range = 4 * slot.offset..4 * (slot.offset + slot.size());
                let view = TensorView::new(Dtype::F32, slot.shape.clone(), &bytes[range])?;
                tensors.push((slot.name.as_str(), view));
            }
        }
        let about: BTreeMap<&str, serde_json::Value> = about.into_iter().collect();
        let about = serde_json::to_string(&about).expect("JSON is serializable");
        let about = HashMap::from([("upwash".to_owned(), about)]);
        safetensors::serialize(tensors, Some(about))
    }
}
