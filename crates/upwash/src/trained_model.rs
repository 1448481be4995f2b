//! Trained models: read from a file, and evaluated on images.

use crate::data::{Images, Pick};
use crate::engine::{NativeModel, Score};
use crate::loss::cross_entropy;
use crate::model::{DescriptionError, ModelFile, ModelFileError, ModelInfo, Replica};
use rayon::prelude::*;
use std::path::Path;

/// A trained model, ready to classify images on the CPU.
///
/// ```no_run
/// let model = upwash::TrainedModel::read("runs/first".as_ref())?;
/// let evaluation = model.evaluate(&upwash::data::digits().test)?;
/// println!("{:.1} % right", 100.0 * evaluation.score.accuracy());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TrainedModel {
    /// What its file says about it.
    pub info: ModelInfo,
    network: NativeModel,
    replica: Replica,
}

/// Why a trained model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainedModelError {
    /// The file cannot be read or does not describe its network.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// The network in the file cannot be built.
    #[error("the network of the model: {0}")]
    Network(#[from] DescriptionError),
    /// The images do not fit the model.
    #[error("{0}")]
    Images(String),
}

/// The result of a model on labeled images.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The loss and the number of images that were classified correctly.
    pub score: Score,
    /// In row i and column j: the number of images of class i that were classified as class j.
    pub confusion: Vec<Vec<u64>>,
}

/// The number of images that a thread classifies at a time.
const PIECE: usize = 256;

impl TrainedModel {
    /// Reads a model file, or the model of a run's directory.
    pub fn read(path: &Path) -> Result<Self, TrainedModelError> {
        let file = ModelFile::read(path)?;
        let info = ModelInfo::of_file(&file)?;
        let network = info.network()?;
        let replica = file.replica(&network.layout())?;
        Ok(Self { info, network: NativeModel::new(network), replica })
    }

    /// The number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.replica.parameters.len()
    }

    /// Images as the model takes them. If both have named classes, labels are matched by name. Gray images get as many
    /// channels as the model has.
    pub fn prepared(&self, mut images: Images, class_names: &[String]) -> Result<Images, TrainedModelError> {
        let refused = |what| Err(TrainedModelError::Images(what));
        let own = &self.info.class_names;
        if !own.is_empty() && !class_names.is_empty() {
            let mut label_of = Vec::new();
            for name in class_names {
                match own.iter().position(|known| known == name) {
                    Some(label) => label_of.push(label as u8),
                    None => return refused(format!("the model has no class `{name}`: it has {}", own.join(", "))),
                }
            }
            images.labels.iter_mut().for_each(|label| *label = label_of[usize::from(*label)]);
        }
        let ([channels, ..], [own, height, width]) = (self.info.input, images.shape);
        if own == 1 && channels > 1 {
            let planes = images.pixels.chunks(height * width);
            images.pixels = planes.flat_map(|plane| plane.repeat(channels)).collect();
            images.shape[0] = channels;
        }
        Ok(images)
    }

    /// Classifies labeled images.
    pub fn evaluate(&self, images: &Images) -> Result<Evaluation, TrainedModelError> {
        let (classes, refused) = (self.info.classes, |what| Err(TrainedModelError::Images(what)));
        let channels = self.info.input[0];
        if images.shape != self.info.input {
            let [model, data] =
                [self.info.input, images.shape].map(|[c, height, width]| format!("{c}x{height}x{width}"));
            return refused(format!("the model takes images of shape {model} (channels, height, width), not {data}"));
        }
        if self.info.scaling.mean.len() != channels || self.info.scaling.deviation.len() != channels {
            return refused(format!("the model's scaling has not {channels} channels, as its images have"));
        }
        if let Some(label) = images.labels.iter().find(|&&label| usize::from(label) >= classes) {
            return refused(format!("the model has {classes} classes, but an image has the label {label}"));
        }
        let starts: Vec<usize> = (0..images.len()).step_by(PIECE).collect();
        let piece = |&start: &usize| self.piece(images, start..(start + PIECE).min(images.len()));
        let pieces: Vec<Evaluation> = starts.par_iter().map(piece).collect();
        let none = Evaluation { score: Score::default(), confusion: vec![vec![0; classes]; classes] };
        Ok(pieces.into_iter().fold(none, Evaluation::join))
    }

    fn piece(&self, images: &Images, range: std::ops::Range<usize>) -> Evaluation {
        let classes = self.info.classes;
        let batch = self.info.scaling.batch(images, range.map(|image| Pick::whole(image as u32)));
        let logits = self.network.logits(&self.replica.parameters, &self.replica.statistics, &batch.pixels);
        let (score, _) = cross_entropy(&logits, &batch.labels, classes);
        let mut confusion = vec![vec![0; classes]; classes];
        for (row, &label) in logits.chunks_exact(classes).zip(&batch.labels) {
            // Ties go to the first class, as in the score.
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let predicted = row.iter().position(|&logit| logit == largest).unwrap_or(0);
            confusion[usize::from(label)][predicted] += 1;
        }
        Evaluation { score, confusion }
    }
}

impl Evaluation {
    /// The evaluation on two sets of images.
    fn join(mut self, other: Self) -> Self {
        self.score = self.score.join(other.score);
        for (own, theirs) in self.confusion.iter_mut().flatten().zip(other.confusion.iter().flatten()) {
            *own += theirs;
        }
        self
    }
}
