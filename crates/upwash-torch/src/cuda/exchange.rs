//! Exchanges on the GPU: a plan becomes numbers that a kernel goes by.

use super::buffers::{Rows, Uploads};
use super::{CudaEngine, EXCHANGE, STEP_AND_MIX, TAKE_STEPS};
use crate::shim::{Argument, TorchError};
use tch::{Kind, Tensor};
use upwash::RowIndex;
use upwash::algorithm::{Assignment, Differences, Outgoing, RowPlan, Vector};
use upwash::compress::{Compression, Draw, kept};
use upwash::engine::{MixOptions, RemoteRow};

/// Rows that a mixing kernel takes at a time, as warps.
const WARPS: u32 = 8;

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
            rows.push(heard_by(part.row, &assignment, parts, options));
        }
        Some(Self { stepped: is_stepped, rows, own_steps })
    }
}

/// The messages of a worker's assignment, with those of a mean.
fn heard_by(
    row: RowIndex,
    assignment: &Assignment<RowIndex>,
    parts: &[RowPlan],
    options: MixOptions,
) -> Option<Differences<RowIndex>> {
    if assignment.mean == 0.0 {
        return assignment.differences(row);
    }
    let counted = parts.iter().map(|part| part.row);
    let counted: Vec<RowIndex> = counted.filter(|&row| Some(row) != options.server).collect();
    let weight = assignment.mean / counted.len() as f64;
    let mut all = assignment.clone();
    counted.iter().for_each(|&sender| all.add(sender, weight));
    match assignment.messages.is_empty() {
        // The mean alone is the same for everyone, to the bit: so is what others are compared with.
        true => Some(Differences::from(*counted.first()?, &all.messages)),
        false => all.differences(row),
    }
}

/// The message that others are compared with and its weight, by the places of messages.
fn reference_of(heard: &Option<Differences<RowIndex>>, place: impl FnOnce(RowIndex) -> i32) -> [i32; 2] {
    match heard {
        Some(heard) => [place(heard.reference), bits(heard.weight)],
        None => [-1, 0],
    }
}

/// Arrays of 32-bit numbers one after the other, and where each begins.
#[derive(Default)]
struct Arrays {
    numbers: Vec<i32>,
    starts: Vec<usize>,
}

impl Arrays {
    fn add(&mut self, array: impl IntoIterator<Item = i32>) {
        // Pairs are read as one: they begin at even places.
        if !self.numbers.len().is_multiple_of(2) {
            self.numbers.push(0);
        }
        self.starts.push(self.numbers.len());
        self.numbers.extend(array);
    }

    /// Sends all; says where each array will be.
    fn send(mut self, uploads: &mut Uploads) -> Result<(Tensor, Vec<Argument>), TorchError> {
        if !self.numbers.len().is_multiple_of(2) {
            self.numbers.push(0);
        }
        let pair = |pair: &[i32]| {
            let [low, high] = [pair[0] as u32, pair[1] as u32].map(u64::from);
            (low | high << 32) as i64
        };
        let pairs: Vec<i64> = self.numbers.chunks_exact(2).map(pair).collect();
        let there = uploads.send(&pairs)?;
        let at = |start: &usize| {
            let from = (*start / 2).min(pairs.len() - 1) as i64;
            Argument::of(&there.narrow(0, from, 1))
        };
        let places = self.starts.iter().map(at).collect();
        Ok((there, places))
    }
}

fn bits(weight: f64) -> i32 {
    (weight as f32).to_bits() as i32
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
        launch_exchange(&self.kernels, &mut self.uploads, &vectors, width, parts, &remote_map, options)
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
        launch_exchange(&self.kernels, &mut self.uploads, &vectors, width, &parts, &remote_map, options)
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

/// Where remote_rows' messages are: rows of the last vector.
struct RemoteRowMap {
    /// Remote rows have the numbers from here on.
    workers: usize,
    /// Each remote's first row.
    first: Vec<usize>,
}

/// Any exchange over rows of this width; `vectors` are models, steps, state_vectors, and what remote_rows sent.
fn launch_exchange(
    kernels: &crate::shim::Kernels,
    uploads: &mut Uploads,
    vectors: &[Argument],
    width: usize,
    parts: &[RowPlan],
    remote_map: &RemoteRowMap,
    options: MixOptions,
) -> Result<(), TorchError> {
    if width == 0 {
        return Ok(());
    }
    let number = |vector: Vector| match vector {
        Vector::Model => 0,
        Vector::Step => 1,
        Vector::State(index) => 2 + index as i32,
    };
    // Messages that nobody hears are not formed.
    let mut places = std::collections::HashMap::new();
    let (mut messages, mut assignments, mut starts) = (Vec::new(), Vec::new(), vec![0]);
    let (mut own_terms, mut heard) = (Vec::new(), Vec::new());
    let rows: std::collections::HashMap<RowIndex, &RowPlan> = parts.iter().map(|part| (part.row, part)).collect();
    for part in parts {
        for assignment in &part.plan.assignments {
            let mut place = |sender: RowIndex| {
                let next = places.len() as i32;
                *places.entry((sender, assignment.number)).or_insert_with(|| {
                    if let Some(remote) = sender.0.checked_sub(remote_map.workers) {
                        let first = own_terms.len();
                        own_terms.push((Vector::State(vectors.len() - 3), 1.0));
                        let row = (remote_map.first[remote] + assignment.number) as i32;
                        messages.extend([row, first as i32, own_terms.len() as i32]);
                        return next;
                    }
                    let message = &rows[&sender].messages[assignment.number];
                    let content = match message.public_copy {
                        Some((copy, _)) => vec![(Vector::State(copy), 1.0)],
                        None => message.content.clone(),
                    };
                    let first = own_terms.len();
                    own_terms.extend(content);
                    messages.extend([sender.0 as i32, first as i32, own_terms.len() as i32]);
                    next
                })
            };
            let first_heard = heard.len();
            let sum = heard_by(part.row, assignment, parts, options);
            let reference = reference_of(&sum, &mut place);
            for (sender, weight) in sum.into_iter().flat_map(|sum| sum.others) {
                heard.push((place(sender), weight));
            }
            let first = own_terms.len();
            own_terms.extend(assignment.own.iter().copied());
            assignments.extend([
                number(assignment.target),
                part.row.0 as i32,
                first as i32,
                own_terms.len() as i32,
                first_heard as i32,
                heard.len() as i32,
            ]);
            assignments.extend(reference);
        }
        starts.push((assignments.len() / 8) as i32);
    }
    let mut arrays = Arrays::default();
    let pointer = |argument: &Argument| match argument {
        Argument::Pointer(place) => {
            let place = *place as usize as u64;
            [place as u32 as i32, (place >> 32) as u32 as i32]
        }
        _ => [0, 0],
    };
    arrays.add(vectors.iter().flat_map(pointer));
    arrays.add(messages);
    arrays.add(assignments);
    arrays.add(starts);
    let own_terms = own_terms.iter();
    arrays.add(own_terms.flat_map(|&(vector, weight)| [number(vector), bits(weight)]));
    arrays.add(heard.iter().flat_map(|&(place, weight)| [place, bits(weight)]));
    let (_kept, at) = arrays.send(uploads)?;
    let width4 = width / 4;
    let arguments = [
        at[0],
        at[1],
        at[2],
        at[3],
        at[4],
        at[5],
        Argument::Int(places.len() as i32),
        Argument::Int(parts.len() as i32),
        Argument::Long(width4 as i64),
    ];
    let grid = [width4.div_ceil(32) as u32, 1, 1];
    let shared = (places.len().max(1) * 128 * size_of::<f32>()) as u32;
    // SAFETY: as `exchange` takes them; all vectors have the parts' rows of this width.
    unsafe { kernels.launch(EXCHANGE, grid, 32 * WARPS, shared, &arguments) }
}
