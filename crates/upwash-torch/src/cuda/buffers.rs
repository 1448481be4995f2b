//! Buffers on the GPU: rows of models, the data set, and inputs that change from round to round.

use super::Precision;
use crate::shim;
use crate::shim::{TorchError, copy, pin};
use tch::{Device, Kind, Tensor};
use upwash::RowIndex;
use upwash::data::{Dataset, Images, Pick};
use upwash::model::Slot;

/// Tensors begin at multiples of this many elements, because some kernels need aligned tensors.
const ALIGNMENT: usize = 64;

/// A buffer with a row for each worker. All rows hold the same tensors.
pub(super) struct Rows {
    pub(super) buffer: Tensor,
    pub(super) tensors: Vec<TensorOffset>,
}

/// Where a tensor is in a row (`offset`) and in the flat vectors of the host (`slot`).
#[derive(Clone)]
pub(super) struct TensorOffset {
    offset: i64,
    slot: Slot,
}

impl Rows {
    pub(super) fn new(rows: usize, slots: &[Slot], device: Device) -> Self {
        let mut width = 0;
        let mut tensor = |slot: &Slot| {
            let offset = width as i64;
            width += slot.size().next_multiple_of(ALIGNMENT);
            let slot = slot.clone();
            TensorOffset { offset, slot }
        };
        let tensors = slots.iter().map(&mut tensor).collect();
        let buffer = Tensor::zeros([rows as i64, width as i64], (Kind::Float, device));
        Self { buffer, tensors }
    }

    pub(super) fn rows(&self) -> usize {
        self.buffer.size()[0] as usize
    }

    pub(super) fn width(&self) -> usize {
        self.buffer.size()[1] as usize
    }

    /// The length of a row in the host's flat vectors, which have no padding between tensors.
    pub(super) fn host_width(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.slot.size()).sum()
    }

    /// A copy of some rows.
    pub(super) fn select(&self, rows: &[RowIndex]) -> Tensor {
        let rows: Vec<i64> = rows.iter().map(|row| row.0 as i64).collect();
        let indices = Tensor::from_slice(&rows).to_device(self.buffer.device());
        self.buffer.index_select(0, &indices)
    }

    /// The tensors of a row. Convolution weights are stored channels last, the layout in which they are used.
    pub(super) fn views(&self, row: usize) -> Vec<Tensor> {
        self.views_of(&self.buffer.get(row as i64))
    }

    /// The tensors of any row with the layout of this buffer.
    fn views_of(&self, row: &Tensor) -> Vec<Tensor> {
        let view = |tensor: &TensorOffset| {
            let flat = row.narrow(0, tensor.offset, tensor.slot.size() as i64);
            let shape: Vec<i64> = tensor.slot.shape.iter().map(|&side| side as i64).collect();
            match shape[..] {
                [outputs, inputs, height, width] => flat.view([outputs, height, width, inputs]).permute([0, 3, 1, 2]),
                _ => flat.view(&shape[..]),
            }
        };
        self.tensors.iter().map(view).collect()
    }

    /// For every element of a row, its index in the host's flat vector; -1 for the padding between tensors.
    pub(super) fn host_indices(&self) -> Vec<i64> {
        let mut indices = vec![-1; self.width()];
        let mut flat = 0;
        for tensor in &self.tensors {
            let (offset, size) = (tensor.offset as usize, tensor.slot.size());
            match tensor.slot.shape[..] {
                [outputs, inputs, height, width] => {
                    let each = [outputs, height, width, inputs];
                    for at in 0..size {
                        // Channels last on the GPU, channels first on the host.
                        let i = at % each[3];
                        let x = at / each[3] % each[2];
                        let y = at / each[3] / each[2] % each[1];
                        let o = at / each[3] / each[2] / each[1];
                        let on_host = ((o * inputs + i) * height + y) * width + x;
                        indices[offset + at] = (flat + on_host) as i64;
                    }
                }
                _ => (0..size).for_each(|at| indices[offset + at] = (flat + at) as i64),
            }
            flat += size;
        }
        indices
    }

    /// A row in the host's layout.
    pub(super) fn download(&self, row: usize) -> Vec<f32> {
        self.in_host_order(&self.buffer.get(row as i64))
    }

    /// Any row with the layout of this buffer, converted to the host's layout.
    pub(super) fn in_host_order(&self, row: &Tensor) -> Vec<f32> {
        let flat: Vec<Tensor> = self.views_of(row).iter().map(|view| view.contiguous().view(-1)).collect();
        if flat.is_empty() {
            return vec![];
        }
        let flat = Tensor::cat(&flat, 0).to_device(Device::Cpu);
        let mut values = vec![0.0; flat.numel()];
        let length = values.len();
        flat.copy_data(&mut values, length);
        values
    }

    pub(super) fn upload(&self, row: usize, values: &[f32]) {
        for (mut view, tensor) in self.views(row).into_iter().zip(&self.tensors) {
            let host = Tensor::from_slice(tensor.slot.of(values));
            view.copy_(&host.view(view.size().as_slice()));
        }
    }

    pub(super) fn download_all(&self) -> Vec<f32> {
        (0..self.rows()).flat_map(|row| self.download(row)).collect()
    }
}

/// Training or test images on the GPU, one byte per pixel.
pub(super) struct ImagesOnDevice {
    pub(super) pixels: Tensor,
    pub(super) labels: Tensor,
}

impl ImagesOnDevice {
    pub(super) fn new(images: &Images, device: Device) -> Self {
        Self {
            pixels: Tensor::from_slice(&images.pixels).to_device(device),
            labels: Tensor::from_slice(&images.labels).to_device(device),
        }
    }
}

/// A worker and the index of one of its batches.
pub(super) type WorkerBatch = (usize, u64);

/// Inputs that change from round to round, and the batches assembled from them.
pub(super) struct Inputs {
    /// (image, down, right, mirrored) of every image of every batch, in pinned memory and on the GPU. The next round
    /// may be loaded while the previous one is still being copied, so two pinned buffers alternate.
    host_picks: [Tensor; 2],
    pub(super) picks: Tensor,
    /// Mean of every channel, then standard deviation of every channel.
    pub(super) scaling: Tensor,
    /// Batches of images, channels last, and their labels.
    pub(super) images: Tensor,
    pub(super) labels: Tensor,
    /// The batches whose picks have been loaded in advance.
    pub(super) prefetched: Option<Vec<WorkerBatch>>,
}

/// Copies small arrays to the GPU. A pinned buffer must not be written while it is being copied, so every array gets a
/// separate one until all earlier copies are known to be complete.
pub(super) struct Uploads {
    device: Device,
    slots: Vec<(Tensor, Tensor)>,
    used: usize,
}

impl Inputs {
    pub(super) fn new(
        data: &Dataset,
        workers: usize,
        batch: usize,
        precision: Precision,
        device: Device,
    ) -> Result<Self, TorchError> {
        let count = (workers * batch) as i64;
        let scaling = [data.scaling.mean.clone(), data.scaling.deviation.clone()].concat();
        let kind = match precision {
            Precision::Bf16 => Kind::BFloat16,
            _ => Kind::Float,
        };
        let [channels, height, width] = data.train.shape.map(|side| side as i64);
        let host = || pin(&Tensor::zeros([4 * count], (Kind::Int, Device::Cpu)));
        Ok(Self {
            host_picks: [host()?, host()?],
            picks: Tensor::zeros([4 * count], (Kind::Int, device)),
            scaling: Tensor::from_slice(&scaling).to_device(device),
            images: Tensor::zeros([count, height, width, channels], (kind, device)),
            labels: Tensor::zeros([count], (Kind::Int64, device)),
            prefetched: None,
        })
    }

    /// Starts copying picks to the beginning of the buffer on the GPU.
    pub(super) fn load(&mut self, picks: &[i32]) -> Result<(), TorchError> {
        self.host_picks.swap(0, 1);
        let [host, _] = &mut self.host_picks;
        shim::host_slice_mut(host)[..picks.len()].copy_from_slice(picks);
        let part = |buffer: &Tensor| buffer.narrow(0, 0, picks.len() as i64);
        copy(&part(&self.picks), &part(host))
    }

    /// Allocates uninitialized tensors for `count` images and their labels.
    pub(super) fn allocate(&self, data: &Dataset, count: usize) -> (Tensor, Tensor) {
        let [channels, height, width] = data.train.shape.map(|side| side as i64);
        let (kind, device) = (self.images.kind(), self.images.device());
        (
            Tensor::empty([count as i64, height, width, channels], (kind, device)),
            Tensor::empty([count as i64], (Kind::Int64, device)),
        )
    }
}

impl Uploads {
    pub(super) fn new(device: Device) -> Self {
        Self { device, slots: vec![], used: 0 }
    }

    /// Makes all buffers available again. All earlier uploads must be complete.
    pub(super) fn recycle(&mut self) {
        self.used = 0;
    }

    /// Starts copying values to the GPU. Returns the tensor that holds them for all work launched after this call.
    pub(super) fn upload(&mut self, values: &[i64]) -> Result<Tensor, TorchError> {
        let fits = |slot: &(Tensor, Tensor)| slot.0.numel() >= values.len();
        if !self.slots.get(self.used).is_some_and(fits) {
            let length = values.len().next_power_of_two().max(1024) as i64;
            let host = pin(&Tensor::zeros([length], (Kind::Int64, Device::Cpu)))?;
            let on_device = Tensor::zeros([length], (Kind::Int64, self.device));
            self.slots.truncate(self.used);
            self.slots.push((host, on_device));
        }
        let (host, on_device) = &mut self.slots[self.used];
        self.used += 1;
        shim::host_slice_mut(host)[..values.len()].copy_from_slice(values);
        let part = |buffer: &Tensor| buffer.narrow(0, 0, values.len() as i64);
        copy(&part(on_device), &part(host))?;
        Ok(part(on_device))
    }
}

/// A range of a buffer's images, in the shape that networks expect.
pub(super) fn image_view(images: &Tensor, from: usize, count: usize) -> Tensor {
    let range = images.narrow(0, from as i64, count as i64);
    range.permute([0, 3, 1, 2])
}

/// A pick as the kernels read it.
pub(super) fn pick_values(pick: Pick) -> [i32; 4] {
    [pick.image as i32, pick.down as i32, pick.right as i32, i32::from(pick.mirrored)]
}
