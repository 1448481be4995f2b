//! Where the GPU writes losses for the host to read while backward passes still run.
//!
//! A loss is known long before its gradient. The kernel that computes it writes it into memory of the
//! host, and behind it how many it has written; the host looks there until the number is the one it
//! waits for. So plans are made and the next round is launched before the GPU has finished this one.

use crate::shim;
use crate::shim::{Argument, TorchError, pin};
use std::sync::atomic::{Ordering, fence};
use tch::{Device, Kind, Tensor};

/// Loss, right ones, count, and nothing: a row of the board.
const ROW: usize = 4;

pub(super) struct LossReadback {
    /// A row for every worker, in memory that both see.
    rows: Tensor,
    /// How many losses of each worker there have been: the device's count, and ours.
    counts: Tensor,
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

    /// Where the kernel writes a worker's result, and where it counts.
    pub(super) fn places_of(&self, worker: usize) -> [Argument; 2] {
        let row = self.rows.narrow(0, (worker * ROW) as i64, ROW as i64);
        [Argument::of(&row), Argument::of(&self.counts.get(worker as i64))]
    }

    /// Begins anew, once the stream has been waited for.
    pub(super) fn clear(&mut self) {
        let _ = self.counts.zero_();
        shim::numbers_of::<i32>(&mut self.rows).fill(0);
        self.launched.fill(0);
    }

    /// These workers' losses are on their way.
    pub(super) fn expect(&mut self, workers: &[usize]) {
        for &worker in workers {
            self.launched[worker] = self.launched[worker].wrapping_add(1);
        }
    }

    /// Waits for everyone's last loss: (loss, right ones) of each. Those who never had one have zeros.
    pub(super) fn read(&mut self, device: usize) -> Result<Vec<(f32, f32)>, TorchError> {
        let rows = shim::numbers_of::<i32>(&mut self.rows);
        let mut results = Vec::with_capacity(self.launched.len());
        for (row, &launched) in rows.chunks_exact(ROW).zip(&self.launched) {
            // SAFETY: a number that lives as long as the row; the device writes it whole.
            let written = || unsafe { std::ptr::from_ref(&row[2]).read_volatile() } as u32;
            let mut looks = 0u32;
            while written() != launched {
                looks += 1;
                std::hint::spin_loop();
                // Now and then: whether the device still works at all.
                if looks.is_multiple_of(4096) && shim::is_idle(device)? && written() != launched {
                    return Err(TorchError("it finished without a loss".into()));
                }
            }
            fence(Ordering::Acquire);
            // SAFETY: as above; they were written before the count.
            let number = |at: usize| unsafe { std::ptr::from_ref(&row[at]).read_volatile() } as u32;
            results.push((f32::from_bits(number(0)), f32::from_bits(number(1))));
        }
        Ok(results)
    }
}
