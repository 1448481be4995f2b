//! Exchanges on the GPU: a plan becomes numbers that a kernel goes by.

use super::buffers::{Rows, Uploads};
use super::exchange_tables::{Arrays, ExchangeTables, RemoteRowMap, bits, differences_of, reference_of};
use super::{CudaEngine, STEP_AND_MIX, TAKE_STEPS, WARPS};
use crate::shim::{Argument, TorchError};
use tch::{Kind, Tensor};
use upwash::RowIndex;
use upwash::algorithm::{Assignment, Differences, Outgoing, RowPlan, Vector};
use upwash::compress::{Compression, Draw, kept};
use upwash::engine::{MixOptions, RemoteRow};

/// Everyone's sum of messages and of its own step: what the kernel that also takes the steps can do.
struct Plain {
    /// Whether messages are of after the step.
    stepped: bool,
    /// What each row hears.
    rows: Vec<Option<Differences<RowIndex>>>,
    own_steps: Vec<f64>,
}

impl Plain {
    /// None where an exchange is more than that.
    fn of(parts: &[RowPlan], workers: usize, options: MixOptions) -> Option<Self> {
        let [model, stepped] = [Outgoing::model(), Outgoing::stepped()];
        let first = parts.first()?.messages.first()?;
        if parts.len() != workers || first != &model && first != &stepped {
            return None;
        }
        let is_stepped = first == &stepped;
        let (mut rows, mut own_steps) = (Vec::new(), Vec::new());
        for part in parts {
            let [assignment] = &part.plan.assignments[..] else {
                return None;
            };
            if part.messages != [first.clone()] || assignment.target != Vector::Model {
                return None;
            }
            let mut assignment = assignment.clone();
            match assignment.own[..] {
                [] => own_steps.push(0.0),
                [(Vector::Step, weight)] => own_steps.push(weight),
                // x - u is what the worker would send.
                _ if is_stepped && assignment.own == stepped.content => {
                    own_steps.push(0.0);
                    assignment.add(part.row, 1.0);
                }
                _ => return None,
            }
            rows.push(differences_of(part.row, &assignment, parts, options));
        }
        Some(Self { stepped: is_stepped, rows, own_steps })
    }
}

impl CudaEngine {
    /// The rate of every row whose gradient waits to be made a step; -1 for the others.
    fn waiting_rates(&self) -> Vec<i32> {
        let rate = |rate: &Option<f64>| bits(rate.unwrap_or(-1.0));
        self.waiting.iter().map(rate).collect()
    }

    /// Makes the gradients that wait into steps.
    pub(super) fn take_steps(&mut self) -> Result<(), TorchError> {
        if self.waiting.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut arrays = Arrays::default();
        arrays.add(self.waiting_rates());
        let (_kept, places) = arrays.send(&mut self.uploads)?;
        let width4 = self.models.width() / 4;
        let arguments = [
            Argument::of(&self.models.buffer),
            Argument::of(&self.gradients.buffer),
            self.velocities_argument(),
            places[0],
            Argument::Long(width4 as i64),
            Argument::Float(self.sgd.momentum as f32),
            Argument::Float(self.sgd.weight_decay as f32),
            Argument::Int(i32::from(self.sgd.nesterov)),
        ];
        let grid = [width4.div_ceil(256) as u32, self.models.rows() as u32, 1];
        // SAFETY: as `take_steps` takes them; all buffers have these rows of this width.
        unsafe { self.kernels.launch(TAKE_STEPS, grid, 256, 0, &arguments)? };
        self.waiting.fill(None);
        Ok(())
    }

    fn velocities_argument(&self) -> Argument {
        let velocities = self.velocities.as_ref();
        velocities.map_or(Argument::null(), |rows| Argument::of(&rows.buffer))
    }

    pub(super) fn carry_out(
        &mut self,
        parts: &[RowPlan],
        remote_rows: &[RemoteRow],
        options: MixOptions,
    ) -> Result<(), TorchError> {
        let everyone_waits = self.trained.iter().all(|&worker| self.waiting[worker].is_some());
        if remote_rows.is_empty()
            && let Some(plain) = Plain::of(parts, self.models.rows(), options)
            && everyone_waits
            && options.is_last
        {
            return self.step_and_mix(&plain);
        }
        self.take_steps()?;
        self.compress(parts, options)?;
        // Remote rows' messages are rows of one more vector.
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
        let tables = ExchangeTables::new(&vectors, parts, &remote_map, options);
        tables.launch(&self.kernels, &mut self.uploads, &vectors, width)
    }

    /// A worker's message on its way to another process.
    pub(super) fn outgoing_row(
        &mut self,
        row: RowIndex,
        message: &Outgoing,
        options: MixOptions,
    ) -> Result<Vec<f32>, TorchError> {
        self.take_steps()?;
        let mut content = self.combined(row, message);
        if let Some((_, compression)) = message.public_copy {
            content = self.arrives(&content, compression, &options.draw(row));
        }
        Ok(self.models.in_host_order(&content))
    }

    /// A message's content, less its public copy where it has one.
    fn combined(&self, row: RowIndex, message: &Outgoing) -> Tensor {
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

    /// The steps and a plain mixing in one pass.
    fn step_and_mix(&mut self, plain: &Plain) -> Result<(), TorchError> {
        let mut starts = vec![0];
        let mut entries = Vec::new();
        for row in &plain.rows {
            let others = row.iter().flat_map(|row| &row.others);
            entries.extend(others.flat_map(|entry| [entry.0.0 as i32, bits(entry.1)]));
            starts.push(entries.len() as i32 / 2);
        }
        let reference = |row| reference_of(row, |sender| sender.0 as i32);
        let mut arrays = Arrays::default();
        arrays.add(starts);
        arrays.add(entries);
        arrays.add(plain.rows.iter().flat_map(reference));
        arrays.add(plain.own_steps.iter().map(|&weight| bits(weight)));
        arrays.add(self.waiting_rates());
        let (_kept, places) = arrays.send(&mut self.uploads)?;
        let (rows, width4) = (self.models.rows(), self.models.width() / 4);
        let arguments = [
            Argument::of(&self.models.buffer),
            Argument::of(&self.gradients.buffer),
            self.velocities_argument(),
            places[0],
            places[1],
            places[2],
            places[3],
            places[4],
            Argument::Int(rows as i32),
            Argument::Long(width4 as i64),
            Argument::Float(self.sgd.momentum as f32),
            Argument::Float(self.sgd.weight_decay as f32),
            Argument::Int(i32::from(self.sgd.nesterov)),
            Argument::Int(i32::from(plain.stepped)),
        ];
        let grid = [width4.div_ceil(32) as u32, 1, 1];
        let shared = (2 * rows * 128 * size_of::<f32>()) as u32;
        self.waiting.fill(None);
        // SAFETY: as `step_and_mix` takes them; all buffers have these rows of this width.
        unsafe { self.kernels.launch(STEP_AND_MIX, grid, 32 * WARPS, shared, &arguments) }
    }

    pub(super) fn mix_statistics_rows(
        &mut self,
        weights: &[Vec<(RowIndex, f64)>],
        remote_rows: Vec<Vec<f32>>,
    ) -> Result<(), TorchError> {
        let part = |(index, row): (usize, &Vec<(RowIndex, f64)>)| RowPlan {
            row: RowIndex(index),
            messages: vec![Outgoing::model()],
            plan: Assignment::mixed(Vector::Model, row.clone()).into(),
        };
        let parts: Vec<RowPlan> = weights.iter().enumerate().map(part).collect();
        let received_rows = Rows::new(remote_rows.len(), &self.layout.statistics, self.device);
        for (row, statistics) in remote_rows.iter().enumerate() {
            received_rows.upload(row, statistics);
        }
        // No step and no extra vectors here: the remote_rows' come next all the same.
        let own = Argument::of(&self.statistics.buffer);
        let vectors = [own, own, Argument::of(&received_rows.buffer)];
        let remote_map = RemoteRowMap { workers: self.statistics.rows(), first: (0..remote_rows.len()).collect() };
        let (width, options) = (self.statistics.width(), MixOptions::default());
        let tables = ExchangeTables::new(&vectors, &parts, &remote_map, options);
        tables.launch(&self.kernels, &mut self.uploads, &vectors, width)
    }

    /// Brings public copies up to date by what arrives of the difference.
    fn compress(&mut self, parts: &[RowPlan], options: MixOptions) -> Result<(), TorchError> {
        for part in parts {
            for message in &part.messages {
                let Some((copy, compression)) = message.public_copy else {
                    continue;
                };
                let mut copy = self.state_vectors[copy].buffer.get(part.row.0 as i64);
                let difference = self.combined(part.row, message);
                let draw = options.draw(part.row);
                copy += self.arrives(&difference, compression, &draw);
            }
        }
        Ok(())
    }

    fn arrives(&mut self, vector: &Tensor, compression: Compression, draw: &[u64]) -> Tensor {
        let count = self.layout.parameter_count();
        let device = self.device;
        let places = self.host_places.get_or_insert_with(|| {
            let places = self.models.places_on_host();
            Tensor::from_slice(&places).to_device(device)
        });
        match compression {
            Compression::None => vector.copy(),
            Compression::TopK(part) => {
                let kept = kept(part, count) as i64;
                let (_, largest) = vector.abs().topk(kept, 0, true, false);
                vector.zeros_like().scatter(0, &largest, &vector.gather(0, &largest, false))
            }
            Compression::RandomK(part) => {
                let draw = Draw::new(part, count, draw);
                let turned = &*places * draw.stride as i64 + draw.offset as i64;
                let chosen = turned.remainder(draw.count as i64).lt(draw.chosen as i64).logical_and(&places.ge(0));
                vector * chosen.to_kind(Kind::Float)
            }
            Compression::Sign => {
                let size = vector.abs().sum(Kind::Double) / count as f64;
                let size = size.to_kind(Kind::Float);
                let sign = vector.ge(0.0).to_kind(Kind::Float) * 2.0 - 1.0;
                sign * size * places.ge(0).to_kind(Kind::Float)
            }
            Compression::EightBit => {
                let scale: Tensor = vector.abs().max() / 127.0;
                // All zero stays zero.
                let safe = scale.where_self(&scale.ne(0.0), &scale.ones_like());
                (vector / &safe).round() * safe
            }
        }
    }
}
