//! What lies on the GPU: rows of models, the data set, and what changes from round to round.

use super::Precision;
use crate::shim;
use crate::shim::{TorchError, copy, pin};
use tch::{Device, Kind, Tensor};
use upwash::RowIndex;
use upwash::data::{Dataset, Images, Pick};
use upwash::model::Slot;

/// Tensors begin at multiples of this many numbers: some kernels need aligned ones.
const ALIGNMENT: usize = 64;

/// A buffer with a row for each worker, and the tensors in it.
pub(super) struct Rows {
    pub(super) buffer: Tensor,
    pub(super) places: Vec<Place>,
}

/// Where a tensor is, here and in the flat vectors of the host.
#[derive(Clone)]
pub(super) struct Place {
    offset: i64,
    slot: Slot,
}

impl Rows {
    pub(super) fn new(rows: usize, slots: &[Slot], device: Device) -> Self {
        let mut width = 0;
        let mut place = |slot: &Slot| {
            let offset = width as i64;
            width += slot.size().next_multiple_of(ALIGNMENT);
            let slot = slot.clone();
            Place { offset, slot }
        };
        let places = slots.iter().map(&mut place).collect();
        let buffer = Tensor::zeros([rows as i64, width as i64], (Kind::Float, device));
        Self { buffer, places }
    }

    pub(super) fn rows(&self) -> usize {
        self.buffer.size()[0] as usize
    }

    pub(super) fn width(&self) -> usize {
        self.buffer.size()[1] as usize
    }

    /// How many numbers the host has in a row.
    pub(super) fn numbers(&self) -> usize {
        self.places.iter().map(|place| place.slot.size()).sum()
    }

    /// Some rows.
    pub(super) fn some(&self, rows: &[RowIndex]) -> Tensor {
        let rows: Vec<i64> = rows.iter().map(|row| row.0 as i64).collect();
        let chosen = Tensor::from_slice(&rows).to_device(self.buffer.device());
        self.buffer.index_select(0, &chosen)
    }

    /// The tensors of a row. Kernels of convolutions lie channels last, which is how they are used.
    pub(super) fn views(&self, row: usize) -> Vec<Tensor> {
        self.views_of(&self.buffer.get(row as i64))
    }

    /// The same of any row that is laid out like these.
    fn views_of(&self, row: &Tensor) -> Vec<Tensor> {
        let view = |place: &Place| {
            let flat = row.narrow(0, place.offset, place.slot.size() as i64);
            let shape: Vec<i64> = place.slot.shape.iter().map(|&side| side as i64).collect();
            match shape[..] {
                [outputs, inputs, height, width] => flat.view([outputs, height, width, inputs]).permute([0, 3, 1, 2]),
                _ => flat.view(&shape[..]),
            }
        };
        self.places.iter().map(view).collect()
    }

    /// For every number of a row, where the host has it; -1 between tensors.
    pub(super) fn places_on_host(&self) -> Vec<i64> {
        let mut places = vec![-1; self.width()];
        let mut flat = 0;
        for place in &self.places {
            let (offset, size) = (place.offset as usize, place.slot.size());
            match place.slot.shape[..] {
                [outputs, inputs, height, width] => {
                    let each = [outputs, height, width, inputs];
                    for at in 0..size {
                        // Channels last here, channel by channel there.
                        let i = at % each[3];
                        let x = at / each[3] % each[2];
                        let y = at / each[3] / each[2] % each[1];
                        let o = at / each[3] / each[2] / each[1];
                        let there = ((o * inputs + i) * height + y) * width + x;
                        places[offset + at] = (flat + there) as i64;
                    }
                }
                _ => (0..size).for_each(|at| places[offset + at] = (flat + at) as i64),
            }
            flat += size;
        }
        places
    }

    /// A row as the host has it.
    pub(super) fn download(&self, row: usize) -> Vec<f32> {
        self.in_host_order(&self.buffer.get(row as i64))
    }

    /// Any row that is laid out like these, as the host has it.
    pub(super) fn in_host_order(&self, row: &Tensor) -> Vec<f32> {
        let flat: Vec<Tensor> = self.views_of(row).iter().map(|view| view.contiguous().view(-1)).collect();
        if flat.is_empty() {
            return vec![];
        }
        let flat = Tensor::cat(&flat, 0).to_device(Device::Cpu);
        let mut numbers = vec![0.0; flat.numel()];
        let length = numbers.len();
        flat.copy_data(&mut numbers, length);
        numbers
    }

    pub(super) fn upload(&self, row: usize, numbers: &[f32]) {
        for (mut view, place) in self.views(row).into_iter().zip(&self.places) {
            let host = Tensor::from_slice(place.slot.of(numbers));
            view.copy_(&host.view(view.size().as_slice()));
        }
    }

    pub(super) fn download_all(&self) -> Vec<f32> {
        (0..self.rows()).flat_map(|row| self.download(row)).collect()
    }
}

/// A part of the data set on the GPU, a byte a pixel.
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

/// A worker, and which of its batches.
pub(super) type WorkerBatch = (usize, u64);

/// What changes from round to round, and where it is put together.
pub(super) struct Inputs {
    /// (image, down, right, mirrored) of every image of every batch: on the host, and there. A round may
    /// be loaded while the one before is still on its way: they take turns.
    hosts: [Tensor; 2],
    pub(super) picks: Tensor,
    /// Means, then deviations.
    pub(super) scaling: Tensor,
    /// Batches of images, channels last, and their labels.
    pub(super) images: Tensor,
    pub(super) labels: Tensor,
    /// The picks that are there already, before they are due: of these batches of these workers.
    pub(super) ahead: Option<Vec<WorkerBatch>>,
}

/// Small arrays on their way to the GPU. A pinned buffer must not be written to while it is copied:
/// every array gets one of its own until the stream has been waited for.
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
            hosts: [host()?, host()?],
            picks: Tensor::zeros([4 * count], (Kind::Int, device)),
            scaling: Tensor::from_slice(&scaling).to_device(device),
            images: Tensor::zeros([count, height, width, channels], (kind, device)),
            labels: Tensor::zeros([count], (Kind::Int64, device)),
            ahead: None,
        })
    }

    /// Sends picks on their way: the first so many.
    pub(super) fn load(&mut self, picks: &[i32]) -> Result<(), TorchError> {
        self.hosts.swap(0, 1);
        let [host, _] = &mut self.hosts;
        shim::numbers_of(host)[..picks.len()].copy_from_slice(picks);
        let part = |buffer: &Tensor| buffer.narrow(0, 0, picks.len() as i64);
        copy(&part(&self.picks), &part(host))
    }

    /// Room for images to be scored, and their labels.
    pub(super) fn room(&self, data: &Dataset, count: usize) -> (Tensor, Tensor) {
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

    /// The stream has been waited for: everything that was sent has arrived.
    pub(super) fn arrived(&mut self) {
        self.used = 0;
    }

    /// Sends numbers; says where they will be for what is launched from here on.
    pub(super) fn send(&mut self, numbers: &[i64]) -> Result<Tensor, TorchError> {
        let room = |slot: &(Tensor, Tensor)| slot.0.numel() >= numbers.len();
        if !self.slots.get(self.used).is_some_and(room) {
            let length = numbers.len().next_power_of_two().max(1024) as i64;
            let host = pin(&Tensor::zeros([length], (Kind::Int64, Device::Cpu)))?;
            let there = Tensor::zeros([length], (Kind::Int64, self.device));
            self.slots.truncate(self.used);
            self.slots.push((host, there));
        }
        let (host, there) = &mut self.slots[self.used];
        self.used += 1;
        shim::numbers_of(host)[..numbers.len()].copy_from_slice(numbers);
        let part = |buffer: &Tensor| buffer.narrow(0, 0, numbers.len() as i64);
        copy(&part(there), &part(host))?;
        Ok(part(there))
    }
}

/// Some of a buffer's images, as networks take them.
pub(super) fn image_view(images: &Tensor, from: usize, count: usize) -> Tensor {
    let some = images.narrow(0, from as i64, count as i64);
    some.permute([0, 3, 1, 2])
}

pub(super) fn numbers_of(pick: Pick) -> [i32; 4] {
    [pick.image as i32, pick.down as i32, pick.right as i32, i32::from(pick.mirrored)]
}
