//! Measurements of messages on the GPU: their distances, and their losses on a receiver's batch. Only the results leave
//! the GPU.

use super::CudaEngine;
use super::buffers::Rows;
use crate::shim::{TorchError, copy};
use tch::{Kind, Tensor};
use upwash::RowIndex;
use upwash::engine::MessagesToMeasure;

impl CudaEngine {
    /// The message of every row, and after them those of remote rows, in the order of the GPU's rows.
    fn messages(&mut self, measured: MessagesToMeasure<'_>) -> Result<Vec<Tensor>, TorchError> {
        self.take_steps()?;
        let rows = measured.messages.iter().enumerate();
        let mut vectors: Vec<Tensor> = rows.map(|(row, message)| self.content_of(RowIndex(row), message)).collect();
        let received: Vec<_> = measured.remote_rows.iter().map(|remote| remote.messages.first()).collect();
        let rows = Rows::new(received.len(), &self.layout.parameters, self.device);
        for (row, message) in received.into_iter().enumerate() {
            if let Some(message) = message {
                rows.upload(row, message);
            }
            vectors.push(rows.buffer.get(row as i64));
        }
        Ok(vectors)
    }

    /// The distance between the messages of each pair of rows.
    pub(super) fn message_distances(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, TorchError> {
        let vectors = self.messages(measured)?;
        Ok(distances(&vectors, pairs))
    }

    /// For each pair, the loss of the second row's message on the batch of the first one.
    pub(super) fn losses_of_messages(
        &mut self,
        measured: MessagesToMeasure<'_>,
        pairs: &[(RowIndex, RowIndex)],
    ) -> Result<Vec<f64>, TorchError> {
        let vectors = self.messages(measured)?;
        let (models, statistics) = &self.scratch;
        let mut losses = Vec::with_capacity(pairs.len());
        for (receiver, sender) in pairs {
            copy(&models.buffer, &vectors[sender.0].unsqueeze(0))?;
            copy(&statistics.buffer, &self.statistics.select(&[*receiver]))?;
            let picks = self.picks(&[(receiver.0, measured.options.round)]);
            let loss = self.score_picks(&*self.scratch_network, &self.train, &picks)?.loss;
            losses.push(if loss.is_nan() { f64::INFINITY } else { loss });
        }
        Ok(losses)
    }
}

/// The distance between the vectors of each pair: squares in single precision, summed in double, with one transfer to
/// the host.
fn distances(vectors: &[Tensor], pairs: &[(RowIndex, RowIndex)]) -> Vec<f64> {
    let squared = |(one, other): &(RowIndex, RowIndex)| {
        let difference = &vectors[one.0] - &vectors[other.0];
        difference.square().sum(Kind::Double)
    };
    let squared: Vec<Tensor> = pairs.iter().map(squared).collect();
    if squared.is_empty() {
        return vec![];
    }
    let distances = Tensor::stack(&squared, 0).sqrt().to_device(tch::Device::Cpu);
    Vec::<f64>::try_from(distances).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the CPU, where the same operations run without a GPU.
    #[test]
    fn distances_match_those_by_hand() {
        // Squares are taken in single precision, so the large entry is a power of two.
        let vectors =
            [[0.0f32, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 1048576.0, 0.0]].map(|vector| Tensor::from_slice(&vector));
        let pairs = [(0, 1), (1, 0), (0, 2), (1, 1)].map(|(one, other)| (RowIndex(one), RowIndex(other)));
        assert_eq!(distances(&vectors, &pairs), [5.0, 5.0, 1048576.0, 0.0]);
        assert!(distances(&vectors, &[]).is_empty());
        let broken = [Tensor::from_slice(&[f32::NAN]), Tensor::from_slice(&[1.0f32])];
        assert!(distances(&broken, &pairs[..1])[0].is_nan());
    }
}
