//! What lies on the GPU: rows of models, the data set, and what changes from round to round.

use super::Precision;
use crate::shim::{Argument, TorchError, copy, pin};
use tch::{Device, Kind, Tensor};
use upwash::algorithm::Plan;
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

    /// The tensors of a row. Kernels of convolutions lie channels last, which is how they are used.
    pub(super) fn views(&self, row: usize) -> Vec<Tensor> {
        let row = self.buffer.get(row as i64);
        let view = |place: &Place| {
            let flat = row.narrow(0, place.offset, place.slot.size() as i64);
            let shape: Vec<i64> = place.slot.shape.iter().map(|&side| side as i64).collect();
            match shape[..] {
                [outputs, inputs, height, width] => flat
                    .view([outputs, height, width, inputs])
                    .permute([0, 3, 1, 2]),
                _ => flat.view(&shape[..]),
            }
        };
        self.places.iter().map(view).collect()
    }

    /// A row as the host has it.
    pub(super) fn download(&self, row: usize) -> Vec<f32> {
        let flat: Vec<Tensor> = self
            .views(row)
            .iter()
            .map(|view| view.contiguous().view(-1))
            .collect();
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
        (0..self.rows())
            .flat_map(|row| self.download(row))
            .collect()
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

/// What changes from round to round, and where it is put together.
pub(super) struct Inputs {
    /// (image, down, right, mirrored) of every image of every batch: on the host, and there.
    host: Tensor,
    pub(super) picks: Tensor,
    /// Means, then deviations.
    pub(super) scaling: Tensor,
    /// Batches of images, channels last, and their labels.
    pub(super) images: Tensor,
    pub(super) labels: Tensor,
    /// Picks that were prepared ahead.
    pub(super) ahead: Option<(u64, Vec<i32>)>,
}

/// Room for plans: row starts, senders, weights, own updates.
pub(super) struct Plans {
    host: Tensor,
    device: Tensor,
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
        let host = Tensor::zeros([4 * count], (Kind::Int, Device::Cpu));
        Ok(Self {
            host: pin(&host)?,
            picks: Tensor::zeros([4 * count], (Kind::Int, device)),
            scaling: Tensor::from_slice(&scaling).to_device(device),
            images: Tensor::zeros([count, height, width, channels], (kind, device)),
            labels: Tensor::zeros([count], (Kind::Int64, device)),
            ahead: None,
        })
    }

    /// Sends picks on their way.
    pub(super) fn load(&mut self, picks: &[i32]) -> Result<(), TorchError> {
        self.host.copy_(&Tensor::from_slice(picks));
        copy(&self.picks, &self.host)
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

impl Plans {
    pub(super) fn new(rows: usize, device: Device) -> Result<Self, TorchError> {
        // As if everyone heard everyone.
        let room = (2 * rows * rows + 2 * rows + 1) as i64;
        let host = Tensor::zeros([room], (Kind::Int, Device::Cpu));
        Ok(Self {
            host: pin(&host)?,
            device: Tensor::zeros([room], (Kind::Int, device)),
        })
    }

    /// Sends plans on their way; says where their parts will be.
    pub(super) fn load(&self, plans: &[Plan]) -> Result<[Argument; 4], TorchError> {
        let (mut starts, mut senders, mut weights) = (vec![0], vec![], vec![]);
        for plan in plans {
            for &(sender, weight) in plan.messages.iter().filter(|entry| entry.1 != 0.0) {
                senders.push(sender as i32);
                weights.push((weight as f32).to_bits() as i32);
            }
            starts.push(senders.len() as i32);
        }
        let own = plans
            .iter()
            .map(|plan| (plan.own_update as f32).to_bits() as i32);
        let places = [0, starts.len(), starts.len() + senders.len()];
        let all: Vec<i32> = starts
            .iter()
            .chain(&senders)
            .chain(&weights)
            .copied()
            .chain(own)
            .collect();
        let part = |buffer: &Tensor, from: usize, length: usize| {
            buffer.narrow(0, from as i64, length as i64)
        };
        part(&self.host, 0, all.len()).copy_(&Tensor::from_slice(&all));
        copy(
            &part(&self.device, 0, all.len()),
            &part(&self.host, 0, all.len()),
        )?;
        let at = |from: usize| Argument::of(&part(&self.device, from, 1));
        Ok([
            at(places[0]),
            at(places[1]),
            at(places[2]),
            at(places[2] + weights.len()),
        ])
    }
}

/// Some of a buffer's images, as networks take them.
pub(super) fn image_view(images: &Tensor, from: usize, count: usize) -> Tensor {
    let some = images.narrow(0, from as i64, count as i64);
    some.permute([0, 3, 1, 2])
}

pub(super) fn numbers_of(pick: Pick) -> [i32; 4] {
    [
        pick.image as i32,
        pick.down as i32,
        pick.right as i32,
        i32::from(pick.mirrored),
    ]
}
