//! Exchanges on the GPU: plans become tables that the mixing kernels read.

use super::buffers::Rows;
use super::exchange_tables::{Arrays, ExchangeTables, RemoteRowMap, bits, differences_of, reference_of};
use super::{CudaEngine, STEP_AND_MIX, TAKE_STEPS, WARPS};
use crate::shim::{Argument, TorchError};
use tch::{Kind, Tensor};
use upwash::RowIndex;
use upwash::algorithm::{Assignment, Differences, Outgoing, RowPlan, Vector};
use upwash::compress::{Compression, Draw, kept};
use upwash::engine::{MixOptions, RemoteRow};

/// An exchange that the kernel `step_and_mix` can carry out along with the steps: every model becomes a sum of messages
/// and of the worker's own step.
struct FusedExchange {
    /// Whether a message is the model after the step.
    stepped: bool,
    /// The messages that each row receives.
    rows: Vec<Option<Differences<RowIndex>>>,
    own_steps: Vec<f64>,
}

impl FusedExchange {
    /// Returns `None` if the exchange does not have this form.
    fn of(plans: &[RowPlan], workers: usize, options: MixOptions) -> Option<Self> {
        let [model, stepped] = [Outgoing::model(), Outgoing::stepped()];
        let first = plans.first()?.messages.first()?;
        if plans.len() != workers || first != &model && first != &stepped {
            return None;
        }
        let is_stepped = first == &stepped;
        let (mut rows, mut own_steps) = (Vec::new(), Vec::new());
        for plan in plans {
            let [assignment] = &plan.plan.assignments[..] else {
                return None;
            };
            if plan.messages != [first.clone()] || assignment.target != Vector::Model {
                return None;
            }
            let mut assignment = assignment.clone();
            match assignment.own[..] {
                [] => own_steps.push(0.0),
                [(Vector::Step, weight)] => own_steps.push(weight),
                // x - u is the message that the worker itself would send.
                _ if is_stepped && assignment.own == stepped.content => {
                    own_steps.push(0.0);
                    assignment.add(plan.row, 1.0);
                }
                _ => return None,
            }
            rows.push(differences_of(plan.row, &assignment, plans, options));
        }
        Some(Self { stepped: is_stepped, rows, own_steps })
    }
}

impl CudaEngine {
    /// For every row the learning rate of its pending gradient, or -1 if there is none, as bits of an f32.
    fn pending_rate_bits(&self) -> Vec<i32> {
        let rate = |rate: &Option<f64>| bits(rate.unwrap_or(-1.0));
        self.pending_rates.iter().map(rate).collect()
    }

    /// Turns pending gradients into steps.
    pub(super) fn take_steps(&mut self) -> Result<(), TorchError> {
        if self.pending_rates.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut arrays = Arrays::default();
        arrays.add(self.pending_rate_bits());
        let (_table, pointers) = arrays.upload(&mut self.uploads)?;
        let width4 = self.models.width() / 4;
        let arguments = [
            Argument::of(&self.models.buffer),
            Argument::of(&self.gradients.buffer),
            self.velocities_argument(),
            pointers[0],
            Argument::Long(width4 as i64),
            Argument::Float(self.sgd.momentum as f32),
            Argument::Float(self.sgd.weight_decay as f32),
            Argument::Int(i32::from(self.sgd.nesterov)),
        ];
        let grid = [width4.div_ceil(256) as u32, self.models.rows() as u32, 1];
        // SAFETY: the arguments are those of `take_steps` in kernels.cu, in its order. `self` owns models, gradients
        // and velocities, which have the rows and the width of the grid; there is one rate per row. `_table` keeps
        // the rates allocated until the launch is queued; only later work on this stream reuses their memory.
        unsafe { self.kernels.launch(TAKE_STEPS, grid, 256, 0, &arguments)? };
        self.pending_rates.fill(None);
        Ok(())
    }

    fn velocities_argument(&self) -> Argument {
        let velocities = self.velocities.as_ref();
        velocities.map_or(Argument::null(), |rows| Argument::of(&rows.buffer))
    }

    /// Carries out an exchange between the rows of the plans and remote rows.
    pub(super) fn run_exchange(
        &mut self,
        plans: &[RowPlan],
        remote_rows: &[RemoteRow],
        options: MixOptions,
    ) -> Result<(), TorchError> {
        let all_gradients_pending = self.training_workers.iter().all(|&worker| self.pending_rates[worker].is_some());
        if remote_rows.is_empty()
            && let Some(fused) = FusedExchange::of(plans, self.models.rows(), options)
            && all_gradients_pending
            && options.is_last
        {
            return self.step_and_mix(&fused);
        }
        self.take_steps()?;
        self.update_public_copies(plans, options)?;
        // The messages of remote rows are rows of one more vector.
        let messages = remote_rows.iter().flat_map(|remote| &remote.messages);
        let received_rows = Rows::new(messages.clone().count(), &self.layout.parameters, self.device);
        for (row, message) in messages.enumerate() {
            received_rows.upload(row, message);
        }
        let vectors = [&self.models, &self.gradients].into_iter().chain(&self.state_vectors).chain([&received_rows]);
        let vectors: Vec<Argument> = vectors.map(|rows| Argument::of(&rows.buffer)).collect();
        let (width, mut first) = (self.models.width(), 0);
        let mut remote_map = Vec::new();
        for remote in remote_rows {
            remote_map.push(first);
            first += remote.messages.len();
        }
        let remote_map = RemoteRowMap { workers: self.models.rows(), first: remote_map };
        let tables = ExchangeTables::new(&vectors, plans, &remote_map, options);
        tables.launch(&self.kernels, &mut self.uploads, &vectors, width)
    }

    /// A worker's message as it is sent to another process: its content, or the compressed difference from its public
    /// copy.
    pub(super) fn outgoing_row(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
    ) -> Result<Vec<f32>, TorchError> {
        self.take_steps()?;
        let mut content = self.content_of(row, message);
        if let Some((_, compression)) = message.public_copy {
            content = self.compressed(&content, compression, &options.draw(row));
        }
        Ok(self.models.in_host_order(&content))
    }

    /// A message's content, minus its public copy if it has one.
    pub(super) fn content_of(&self, row: RowIndex, message: &Outgoing) -> Tensor {
        let row = |rows: &Rows| rows.buffer.get(row.0 as i64);
        let mut sum = match message.public_copy {
            Some((copy, _)) => -row(&self.state_vectors[copy]),
            None => row(&self.models).zeros_like(),
        };
        for (vector, weight) in &message.content {
            let own = match vector {
                Vector::Model => row(&self.models),
                Vector::Step => row(&self.gradients),
                Vector::State(index) => row(&self.state_vectors[*index]),
            };
            sum += own * *weight;
        }
        sum
    }

    /// Takes the steps and mixes in one pass over memory.
    fn step_and_mix(&mut self, fused: &FusedExchange) -> Result<(), TorchError> {
        let mut starts = vec![0];
        let mut entries = Vec::new();
        for row in &fused.rows {
            let others = row.iter().flat_map(|row| &row.others);
            entries.extend(others.flat_map(|entry| [entry.0.0 as i32, bits(entry.1)]));
            starts.push(entries.len() as i32 / 2);
        }
        let reference = |row| reference_of(row, |sender| sender.0 as i32);
        let mut arrays = Arrays::default();
        arrays.add(starts);
        arrays.add(entries);
        arrays.add(fused.rows.iter().flat_map(reference));
        arrays.add(fused.own_steps.iter().map(|&weight| bits(weight)));
        arrays.add(self.pending_rate_bits());
        let (_table, pointers) = arrays.upload(&mut self.uploads)?;
        let (rows, width4) = (self.models.rows(), self.models.width() / 4);
        let arguments = [
            Argument::of(&self.models.buffer),
            Argument::of(&self.gradients.buffer),
            self.velocities_argument(),
            pointers[0],
            pointers[1],
            pointers[2],
            pointers[3],
            pointers[4],
            Argument::Int(rows as i32),
            Argument::Long(width4 as i64),
            Argument::Float(self.sgd.momentum as f32),
            Argument::Float(self.sgd.weight_decay as f32),
            Argument::Int(i32::from(self.sgd.nesterov)),
            Argument::Int(i32::from(fused.stepped)),
        ];
        let grid = [width4.div_ceil(32) as u32, 1, 1];
        let shared = (2 * rows * 128 * size_of::<f32>()) as u32;
        self.pending_rates.fill(None);
        // SAFETY: the arguments are those of `step_and_mix` in kernels.cu, in its order. `self` owns models,
        // gradients and velocities, which have these rows and this width; the tables have an entry per row and name
        // only these rows, and `shared` has room for a message and a step of each. `_table` keeps the tables
        // allocated until the launch is queued; only later work on this stream reuses their memory.
        unsafe { self.kernels.launch(STEP_AND_MIX, grid, 32 * WARPS, shared, &arguments) }
    }

    /// Replaces the running statistics of every row by a weighted sum.
    pub(super) fn mix_statistics_rows(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), TorchError> {
        let plan = |(index, row): (usize, &Vec<(RowIndex, f64)>)| RowPlan {
            row: RowIndex(index),
            messages: vec![Outgoing::model()],
            plan: Assignment::mixed(Vector::Model, row.clone()).into(),
        };
        let plans: Vec<RowPlan> = weights.iter().enumerate().map(plan).collect();
        let received_rows = Rows::new(remote_rows.len(), &self.layout.statistics, self.device);
        for (row, statistics) in remote_rows.iter().enumerate() {
            received_rows.upload(row, statistics);
        }
        // There are no steps and no state vectors here, but the tables expect remote rows after models and steps.
        let own = Argument::of(&self.statistics.buffer);
        let vectors = [own, own, Argument::of(&received_rows.buffer)];
        let remote_map = RemoteRowMap { workers: self.statistics.rows(), first: (0..remote_rows.len()).collect() };
        let (width, options) = (self.statistics.width(), MixOptions::default());
        let tables = ExchangeTables::new(&vectors, &plans, &remote_map, options);
        tables.launch(&self.kernels, &mut self.uploads, &vectors, width)
    }

    /// Adds the compressed difference to the public copy of every message that has one.
    fn update_public_copies(&mut self, plans: &[RowPlan], options: MixOptions) -> Result<(), TorchError> {
        for plan in plans {
            for message in &plan.messages {
                let Some((copy, compression)) = message.public_copy else {
                    continue;
                };
                let mut copy = self.state_vectors[copy].buffer.get(plan.row.0 as i64);
                let difference = self.content_of(plan.row, message);
                let draw = options.draw(plan.row);
                copy += self.compressed(&difference, compression, &draw);
            }
        }
        Ok(())
    }

    /// A vector after compression and decompression, as receivers see it.
    fn compressed(&mut self, vector: &Tensor, compression: Compression, draw: &[u64]) -> Tensor {
        let count = self.layout.parameter_count();
        let device = self.device;
        let indices = self.host_indices.get_or_insert_with(|| {
            let indices = self.models.host_indices();
            Tensor::from_slice(&indices).to_device(device)
        });
        match compression {
            Compression::None => vector.copy(),
            Compression::TopK(fraction) => {
                let kept = kept(fraction, count) as i64;
                let (_, largest) = vector.abs().topk(kept, 0, true, false);
                vector.zeros_like().scatter(0, &largest, &vector.gather(0, &largest, false))
            }
            Compression::RandomK(fraction) => {
                let draw = Draw::new(fraction, count, draw);
                let permuted = &*indices * draw.stride as i64 + draw.offset as i64;
                let chosen = permuted.remainder(draw.count as i64).lt(draw.chosen as i64).logical_and(&indices.ge(0));
                vector * chosen.to_kind(Kind::Float)
            }
            Compression::Sign => {
                let size = vector.abs().sum(Kind::Double) / count as f64;
                let size = size.to_kind(Kind::Float);
                let sign = vector.ge(0.0).to_kind(Kind::Float) * 2.0 - 1.0;
                sign * size * indices.ge(0).to_kind(Kind::Float)
            }
            Compression::EightBit => {
                let scale: Tensor = vector.abs().max() / 127.0;
                // A zero vector stays zero.
                let safe = scale.where_self(&scale.ne(0.0), &scale.ones_like());
                (vector / &safe).round() * safe
            }
        }
    }
}
