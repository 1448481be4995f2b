//! A model as flat vectors: which tensor is where, and how it is written to a file.

use safetensors::tensor::{Dtype, SafeTensorError, TensorView};
use std::collections::{BTreeMap, HashMap};

/// A tensor within a flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// As `3.body.0.weight`: the path of layer numbers, then what it is.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Where it begins in the vector.
    pub offset: usize,
}

impl Slot {
    /// Numbers in it.
    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its part of a flat vector.
    pub fn of<'a>(&self, vector: &'a [f32]) -> &'a [f32] {
        &vector[self.offset..][..self.size()]
    }

    /// Its part of a flat vector.
    pub fn of_mut<'a>(&self, vector: &'a mut [f32]) -> &'a mut [f32] {
        &mut vector[self.offset..][..self.size()]
    }
}

/// Where a model's tensors are in its two flat vectors.
///
/// ```
/// use upwash::model::Layout;
/// let layout = Layout::new([("weight".into(), vec![3, 2]), ("bias".into(), vec![3])], []);
/// assert_eq!(layout.parameters[1].offset, 6);
/// assert_eq!((layout.parameter_count(), layout.statistic_count()), (9, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// What is trained, in order.
    pub parameters: Vec<Slot>,
    /// Running statistics of batch normalisation, in order.
    pub statistics: Vec<Slot>,
}

impl Layout {
    /// One tensor behind the other, by name and shape.
    pub fn new(
        parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
        statistics: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> Self {
        Self { parameters: placed(parameters), statistics: placed(statistics) }
    }

    /// Numbers that are trained.
    pub fn parameter_count(&self) -> usize {
        end(&self.parameters)
    }

    /// Running statistics.
    pub fn statistic_count(&self) -> usize {
        end(&self.statistics)
    }
}

fn placed(tensors: impl IntoIterator<Item = (String, Vec<usize>)>) -> Vec<Slot> {
    let mut offset = 0;
    let place = |(name, shape)| {
        let slot = Slot { name, shape, offset };
        offset += slot.size();
        slot
    };
    tensors.into_iter().map(place).collect()
}

fn end(slots: &[Slot]) -> usize {
    slots.last().map_or(0, |slot| slot.offset + slot.size())
}

/// One model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replica {
    /// What is trained.
    pub parameters: Vec<f32>,
    /// Running statistics of batch normalisation.
    pub statistics: Vec<f32>,
}

impl Replica {
    /// Whether every number is one.
    pub fn is_finite(&self) -> bool {
        let mut all = self.parameters.iter().chain(&self.statistics);
        all.all(|number| number.is_finite())
    }

    /// The content of a safetensors file, which PyTorch and others read: every tensor by its name,
    /// and `about` as the file's metadata (a JSON object under the key `upwash`: of several keys the
    /// order would be random).
    ///
    /// ```
    /// use upwash::model::{ModelSpec, Replica};
    /// let network = ModelSpec::Softmax.network([1, 2, 2], 3);
    /// let replica = Replica { parameters: network.start(1, 0), statistics: vec![] };
    /// let bytes = replica.to_safetensors(&network.layout(), [("model", "softmax")])?;
    /// let file = safetensors::SafeTensors::deserialize(&bytes)?;
    /// assert_eq!(file.tensor("1.weight")?.shape(), [3, 4]);
    /// # Ok::<(), safetensors::SafeTensorError>(())
    /// ```
    pub fn to_safetensors<'a>(
        &self,
        layout: &Layout,
        about: impl IntoIterator<Item = (&'a str, &'a str)>,
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
        let about: BTreeMap<&str, &str> = about.into_iter().collect();
        let about = serde_json::to_string(&about).expect("text can be written");
        let about = HashMap::from([("upwash".to_owned(), about)]);
        safetensors::serialize(tensors, Some(about))
    }
}
