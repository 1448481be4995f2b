//! Reads losses back to the host while backward passes still run.
//!
//! A loss is known long before its gradient. The kernel that computes a loss writes it into pinned memory of the host,
//! followed by a count of the losses written so far. The host polls until the count is the expected one. This lets the
//! host make plans and launch the next round before the GPU has finished the current one.

use crate::shim;
use crate::shim::{Argument, TorchError, pin};
use std::sync::atomic::{Ordering, fence};
use tch::{Device, Kind, Tensor};

/// Length of a row: loss, number of correct predictions, count, and padding.
const ROW: usize = 4;

/// Losses of all workers in pinned memory.
pub(super) struct LossReadback {
    /// A row for every worker, in pinned memory that host and device can access.
    rows: Tensor,
    /// The device's count of the losses written for each worker.
    counts: Tensor,
    /// The host's count of the losses launched for each worker.
    launched: Vec<u32>,
}

impl LossReadback {
    pub(super) fn new(workers: usize, device: Device) -> Result<Self, TorchError> {
        let rows = [(workers * ROW) as i64];
        Ok(Self {
            rows: pin(&Tensor::zeros(rows, (Kind::Int, Device::Cpu)))?,
            counts: Tensor::zeros([workers as i64], (Kind::Int, device)),
            launched: vec![0; workers],
        })
    }

    /// Kernel arguments of a worker: the row for its result and its counter.
    pub(super) fn arguments_of(&self, worker: usize) -> [Argument; 2] {
        let row = self.rows.narrow(0, (worker * ROW) as i64, ROW as i64);
        [Argument::of(&row), Argument::of(&self.counts.get(worker as i64))]
    }

    /// Resets rows and counts. The stream must have been synchronized.
    pub(super) fn clear(&mut self) {
        let _ = self.counts.zero_();
        shim::host_slice_mut::<i32>(&mut self.rows).fill(0);
        self.launched.fill(0);
    }

    /// Records that the losses of these workers are being launched.
    pub(super) fn expect(&mut self, workers: &[usize]) {
        for &worker in workers {
            self.launched[worker] = self.launched[worker].wrapping_add(1);
        }
    }

    /// Waits for the last loss of every worker. Returns (loss, correct predictions) of each; zeros for a worker that
    /// never had a loss.
    pub(super) fn read(&mut self, device: usize) -> Result<Vec<(f32, f32)>, TorchError> {
        let rows = shim::host_slice_mut::<i32>(&mut self.rows);
        let mut results = Vec::with_capacity(self.launched.len());
        for (row, &launched) in rows.chunks_exact(ROW).zip(&self.launched) {
            // SAFETY: `row[2]` is an aligned element of the pinned tensor that `self` owns and that is borrowed here.
            // The kernel writes it with a single 32-bit store; the volatile read makes every poll load it again.
            let written = || unsafe { std::ptr::from_ref(&row[2]).read_volatile() } as u32;
            let mut polls = 0u32;
            while written() != launched {
                polls += 1;
                std::hint::spin_loop();
                // Check occasionally whether the device has failed or finished without writing the count.
                if polls.is_multiple_of(4096) && shim::is_idle(device)? && written() != launched {
                    return Err(TorchError("the GPU finished a round without writing its loss".into()));
                }
            }
            fence(Ordering::Acquire);
            // SAFETY: as above. The kernel writes loss and correct predictions before the count, with a system-wide
            // fence in between, so they are complete once the count is.
            let number = |at: usize| unsafe { std::ptr::from_ref(&row[at]).read_volatile() } as u32;
            results.push((f32::from_bits(number(0)), f32::from_bits(number(1))));
        }
        Ok(results)
    }
}
