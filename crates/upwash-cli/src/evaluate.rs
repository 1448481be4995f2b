//! `upwash evaluate`: a trained model on data.

use crate::files;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use upwash::config::DataConfig;
use upwash::data::OwnData;
use upwash::experiment::{DataPaths, load};
use upwash::run::directory::{own_data, peer_directories};
use upwash::{Dataset, Evaluation, Images, TrainedModel};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of a run, or a file model.safetensors
    #[arg(value_name = "RUN|MODEL")]
    model: PathBuf,
    /// The data, as in a configuration: digits, cifar10, images:FOLDER, arrays:FILE, ... [default: the data it was trained on]
    #[arg(long, value_name = "NAME")]
    data: Option<String>,
    /// Which part of the data. In own data without a test set, every fifth example of each class is for testing
    #[arg(long, value_enum, default_value_t)]
    split: SplitName,
    /// Write the whole confusion matrix as CSV: a row for each class, a column for each prediction
    #[arg(long, value_name = "FILE")]
    confusion: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum SplitName {
    #[default]
    Test,
    Train,
    /// Both.
    All,
}

/// The model in the folder of a run.
const MODEL_FILE: &str = "model.safetensors";
/// The width of the names of classes in the matrix.
const NAME_WIDTH: usize = 14;
/// The width of a terminal.
const WIDTH: usize = 80;
/// How many confusions are listed where the matrix does not fit.
const LISTED: usize = 10;

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<()> {
    let has_none = args.model.is_dir() && !args.model.join(MODEL_FILE).exists();
    ensure!(
        args.model.exists(),
        "{} does not exist: name the folder of a run, or the model.safetensors that it wrote",
        args.model.display()
    );
    if let (true, Some((_, peer))) = (has_none, peer_directories(&args.model).into_iter().min()) {
        bail!(
            "{} holds a run of peers, each with a model of its own: name one of their folders, for example {}",
            args.model.display(),
            peer.display()
        );
    }
    let model = TrainedModel::read(&args.model).with_context(|| match has_none {
        true => "there is no model: a run writes one when it ends, and each process of several its own",
        false => "the model cannot be used",
    })?;
    let data = data(args, &model)?;
    let (data_name, names) = (data.name.clone(), names(&model, &data));
    let notices = data.notices.clone();
    let class_names = data.class_names.clone();
    let images = model.prepared(select(data, args.split), &class_names)?;
    let found = model.evaluate(&images)?;
    let info = &model.info;
    writeln!(
        out,
        "{}, {} parameters, trained on {} by {}",
        info.model,
        model.parameter_count(),
        info.data,
        info.algorithm
    )?;
    let part = match args.split {
        SplitName::Test => "test",
        SplitName::Train => "training",
        SplitName::All => "training and test",
    };
    writeln!(out, "on {} {part} images of {data_name}", images.len())?;
    for notice in notices {
        writeln!(out, "note: {notice}")?;
    }
    let Evaluation { score, confusion } = &found;
    writeln!(out, "\naccuracy {:.2} %, loss {:.4}\n", 100.0 * score.accuracy(), score.loss)?;
    write!(out, "{}", matrix(&names, confusion))?;
    if let Some(path) = &args.confusion {
        files::write(path, csv(&names, confusion).as_bytes())?;
        writeln!(out, "\nthe confusion matrix is in {}", path.display())?;
    }
    Ok(())
}

/// Loads the data. Pictures become as large as the model's images.
fn data(args: &Args, model: &TrainedModel) -> Result<Dataset> {
    let name = match &args.data {
        Some(name) => name.clone(),
        None => trained_on(args, &model.info.data)?,
    };
    let [_, height, width] = model.info.input;
    let is_folder = matches!(OwnData::parse(&name), Some(OwnData::Images(_)));
    let image_size = (is_folder && height == width).then_some(height);
    let config = DataConfig { name, image_size, ..DataConfig::default() };
    load(&config, &DataPaths::standard().data).context("--data")
}

/// The name of the data that the model was trained on. Of own data, the folder of the run says where it was.
fn trained_on(args: &Args, known: &str) -> Result<String> {
    let is_own = OwnData::parse(known).is_some();
    if !is_own && !known.starts_with(upwash::model::CUSTOM) {
        return Ok(known.to_owned());
    }
    let folder = if args.model.is_dir() { Some(args.model.as_path()) } else { args.model.parent() };
    let located = folder.filter(|_| is_own).and_then(own_data);
    let located = located.filter(|name| OwnData::parse(name).is_some_and(|own| own.path().exists()));
    located.with_context(|| {
        format!("the model was trained on {known}: say where data is, with --data images:FOLDER or arrays:FILE")
    })
}

fn select(data: Dataset, split: SplitName) -> Images {
    match split {
        SplitName::Test => data.test,
        SplitName::Train => data.train,
        SplitName::All => {
            let mut all = data.train;
            all.pixels.extend(data.test.pixels);
            all.labels.extend(data.test.labels);
            all
        }
    }
}

/// The names of the model's classes: its own, those of the data, or numbers.
fn names(model: &TrainedModel, data: &Dataset) -> Vec<String> {
    let known = [&model.info.class_names, &data.class_names].into_iter().find(|names| !names.is_empty());
    match known {
        Some(names) if names.len() == model.info.classes => names.clone(),
        _ => (0..model.info.classes).map(|class| class.to_string()).collect(),
    }
}

/// A share in percent; nothing of nothing.
fn percent(part: u64, all: u64) -> String {
    if all == 0 { "-".into() } else { format!("{:.1}", 100.0 * part as f64 / all as f64) }
}

/// The confusion matrix, or the most frequent confusions where it does not fit a terminal.
fn matrix(names: &[String], confusion: &[Vec<u64>]) -> String {
    let largest = confusion.iter().flatten().max().copied().unwrap_or(0);
    let cell = largest.to_string().len().max(3) + 1;
    let width = NAME_WIDTH + cell * names.len() + 9;
    if width > WIDTH {
        return confusions(names, confusion);
    }
    let short = |name: &str, width: usize| name.chars().take(width).collect::<String>();
    let mut text = String::from("rows are classes, columns are predictions\n");
    let _ = write!(text, "{:NAME_WIDTH$}", "");
    for (class, name) in names.iter().enumerate() {
        let head = if name.chars().count() < cell { name.clone() } else { class.to_string() };
        let _ = write!(text, "{head:>cell$}");
    }
    let _ = writeln!(text, "{:>9}", "right %");
    for (class, (name, row)) in names.iter().zip(confusion).enumerate() {
        let number = class.to_string();
        let name = if *name == number { number } else { format!("{number} {name}") };
        let _ = write!(text, "{:<NAME_WIDTH$}", short(&name, NAME_WIDTH - 1));
        row.iter().for_each(|count| {
            let _ = write!(text, "{count:>cell$}");
        });
        let _ = writeln!(text, "{:>9}", percent(row[class], row.iter().sum()));
    }
    text
}

fn confusions(names: &[String], confusion: &[Vec<u64>]) -> String {
    let mut found: Vec<(u64, usize, usize)> = Vec::new();
    for (class, row) in confusion.iter().enumerate() {
        let others = row.iter().enumerate().filter(|(other, count)| *other != class && **count > 0);
        found.extend(others.map(|(other, count)| (*count, class, other)));
    }
    found.sort_by_key(|(count, class, other)| (std::cmp::Reverse(*count), *class, *other));
    let mut text = format!("{} classes; the most frequent confusions (--confusion FILE writes all):\n", names.len());
    for (count, class, other) in found.into_iter().take(LISTED) {
        let all = confusion[class].iter().sum();
        let _ = writeln!(
            text,
            "{count:>7} of {all} {} were taken for {} ({} %)",
            names[class],
            names[other],
            percent(count, all)
        );
    }
    text
}

fn csv(names: &[String], confusion: &[Vec<u64>]) -> String {
    let quoted = |text: &String| format!("\"{}\"", text.replace('"', "\"\""));
    let mut text = format!("class,{}\n", names.iter().map(quoted).collect::<Vec<_>>().join(","));
    for (name, row) in names.iter().zip(confusion) {
        let counts: Vec<String> = row.iter().map(u64::to_string).collect();
        let _ = writeln!(text, "{},{}", quoted(name), counts.join(","));
    }
    text
}
