//! The sources of manifests: files, folders, standard input.

use crate::manifest::{Fault, File, Location, odd};
use crate::survival::lock;
use rayon::prelude::*;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The largest file, in bytes: 64 MiB. No cluster accepts an object of more than 1.5 MiB.
pub const LIMIT: u64 = 64 * 1024 * 1024;
/// The deepest nesting of folders.
const DEPTH: usize = 64;
/// The extensions of files that are read from a folder.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// The most edits between a misspelt name of a file and the intended one.
const MAX_EDITS: usize = 2;
/// The most files of a folder among which the intended one is looked for.
const CANDIDATES: usize = 1000;

/// The depth to which a folder is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Only the files of the folder itself.
    Flat,
    /// Also the files of its subfolders.
    Recursive,
}

/// The name of standard input in places.
pub const STDIN: &str = "standard input";

/// Reads `paths`: files, folders, and `-` for standard input. A folder gives its `*.yaml`, `*.yml` and `*.json` files,
/// by name.
///
/// # Errors
/// All faults, not only the first.
pub fn read(paths: &[PathBuf], walk: Walk) -> Result<Vec<File>, Vec<Fault>> {
    let (files, faults) = read_what_can_be(paths, walk);
    if faults.is_empty() { Ok(files) } else { Err(faults) }
}

/// As [`read`], but returns the readable files together with the faults of the others.
pub fn read_what_can_be(paths: &[PathBuf], walk: Walk) -> (Vec<File>, Vec<Fault>) {
    read_all(paths, walk, File::parse)
}

/// As [`read`], with plain spaces in place of no-break spaces and similar ones. Also returns the place of the first
/// such space in each file.
///
/// # Errors
/// All remaining faults.
pub fn read_forgiving(paths: &[PathBuf], walk: Walk) -> Result<(Vec<File>, Vec<Location>), Vec<Fault>> {
    let places = Mutex::new(Vec::new());
    let (files, faults) = read_all(paths, walk, |name, bytes| match String::from_utf8(bytes) {
        Ok(text) => {
            if let Some(at) = text.find(odd::is_space) {
                let line = text[..at].matches('\n').count() + 1;
                lock(&places).push(Location { file: name.to_owned(), line });
            }
            File::parse(name, text.replace(odd::is_space, " ").into_bytes())
        }
        Err(error) => File::parse(name, error.into_bytes()),
    });
    let mut places = std::mem::take(&mut *lock(&places));
    places.sort();
    if faults.is_empty() { Ok((files, places)) } else { Err(faults) }
}

fn read_all(
    paths: &[PathBuf],
    walk: Walk,
    parse: impl Fn(&str, Vec<u8>) -> Result<File, Vec<Fault>> + Sync,
) -> (Vec<File>, Vec<Fault>) {
    let (mut files, mut faults) = (Vec::new(), Vec::new());
    let paths: Vec<PathBuf> = paths.iter().flat_map(|path| split(path)).collect();
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        return (files, vec![fault("-", "standard input can be read only once: give `-` once")]);
    }
    let mut found = Vec::new();
    for path in &paths {
        match list(path, walk) {
            Ok(paths) => found.extend(paths.into_iter().map(Ok)),
            Err(fault) => found.push(Err(vec![fault])),
        }
    }
    let loaded: Vec<_> = found
        .par_iter()
        .map(|path| path.as_deref().map_err(Clone::clone).and_then(|path| load(path, &parse)))
        .collect();
    for loaded in loaded {
        match loaded {
            Ok(file) => files.push(file),
            Err(found) => faults.extend(found),
        }
    }
    (files, faults)
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn fault(name: &str, message: impl Into<String>) -> Fault {
    Fault { place: Location { file: name.to_owned(), line: 0 }, message: message.into() }
}

/// The files of `path`.
fn list(path: &Path, walk: Walk) -> Result<Vec<PathBuf>, Fault> {
    if is_stdin(path) || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    collect(path, walk, DEPTH, &mut files)?;
    if files.is_empty() {
        let hint = if walk == Walk::Flat { "; `-R` reads its folders, too" } else { "" };
        return Err(fault(&path.to_string_lossy(), format!("no *.yaml, *.yml or *.json in this folder{hint}")));
    }
    Ok(files)
}

fn collect(folder: &Path, walk: Walk, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Fault> {
    let failed = |error: io::Error| fault(&folder.to_string_lossy(), format!("the folder cannot be read: {error}"));
    let mut entries = fs::read_dir(folder).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // As in kubectl, links to folders are not followed, because they may lead back.
        let is_folder = entry.file_type().map_err(failed)?.is_dir();
        let path = entry.path();
        if is_folder && walk == Walk::Recursive {
            if depth == 0 {
                return Err(fault(&path.to_string_lossy(), format!("more than {DEPTH} folders in one another")));
            }
            collect(&path, walk, depth - 1, files)?;
        } else if !path.is_dir() && is_manifest(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn load(path: &Path, parse: impl Fn(&str, Vec<u8>) -> Result<File, Vec<Fault>>) -> Result<File, Vec<Fault>> {
    let (name, bytes) = if is_stdin(path) {
        (STDIN.to_owned(), bounded(io::stdin().lock()))
    } else {
        (path.to_string_lossy().into_owned(), open(path))
    };
    match bytes {
        Ok(Some(bytes)) => parse(&name, bytes),
        Ok(None) => Err(vec![fault(&name, format!("more than {} MiB: give smaller files", LIMIT >> 20))]),
        Err(error) if name.contains("://") => {
            let message =
                format!("no such file ({error}); an address is not read: use `curl -L ADDRESS | scpol ... -f -`");
            Err(vec![fault(&name, message)])
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => near(path).map(|near| format!("; did you mean `{}`?", near.display())),
                _ => None,
            };
            Err(vec![fault(&name, format!("cannot be read: {error}{}", hint.unwrap_or_default()))])
        }
    }
}

/// The file or folder beside the missing `path` that was probably meant: its name is nearly the same, or has another extension.
fn near(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names =
        fs::read_dir(folder).ok()?.take(CANDIDATES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let stem = |name: &str| Path::new(name).file_stem().map(ToOwned::to_owned);
    let edits = |other: &String| match stem(other) == stem(name) && is_manifest(Path::new(other)) {
        true => 0,
        false => strsim::damerau_levenshtein(other, name),
    };
    let (_, nearest) = names.map(|name| (edits(&name), name)).filter(|(edits, _)| *edits <= MAX_EDITS).min()?;
    Some(path.with_file_name(nearest))
}

/// Whether the name of `path` is that of a manifest.
pub fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

/// The paths in `path`, which are several if it is no file and has commas, as for kubectl.
fn split(path: &Path) -> Vec<PathBuf> {
    match path.to_str() {
        Some(text) if text.contains(',') && !path.exists() => text.split(',').map(PathBuf::from).collect(),
        _ => vec![path.to_owned()],
    }
}

fn open(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = fs::File::open(path)?;
    if file.metadata()?.len() > LIMIT {
        return Ok(None);
    }
    bounded(file)
}

/// All bytes of `reader`, or none if there are more than [`LIMIT`]. The size of a pipe is unknown in advance.
fn bounded(reader: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(LIMIT + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed when the test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("scpol-source-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("below/deeper")).unwrap();
            Self(path)
        }

        fn with(self, file: &str, text: &str) -> Self {
            fs::write(self.0.join(file), text).unwrap();
            self
        }

        fn names(&self, walk: Walk) -> Result<Vec<String>, Vec<Fault>> {
            let files = read(std::slice::from_ref(&self.0), walk)?;
            let short =
                |file: File| Path::new(&file.name).strip_prefix(&self.0).unwrap().to_string_lossy().into_owned();
            Ok(files.into_iter().map(short).collect())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_folder_gives_its_manifests_by_name_and_with_recursion_those_below() {
        let folder = Folder::new("walk")
            .with("b.yaml", "a: 1")
            .with("a.json", "{}")
            .with("c.yml", "")
            .with("README.md", "- [")
            .with("below/x.yaml", "a: 1")
            .with("below/deeper/y.yaml", "a: 1");
        assert_eq!(folder.names(Walk::Flat).unwrap(), ["a.json", "b.yaml", "c.yml"]);
        let all = ["a.json", "b.yaml", "below/deeper/y.yaml", "below/x.yaml", "c.yml"];
        assert_eq!(folder.names(Walk::Recursive).unwrap(), all);
    }

    #[test]
    fn a_folder_without_manifests_and_a_file_that_is_not_there_are_told() {
        let folder = Folder::new("none").with("below/x.yaml", "a: 1");
        let faults = folder.names(Walk::Flat).unwrap_err();
        assert!(faults[0].message.contains("`-R` reads its folders"), "{}", faults[0]);
        let faults = read(&[folder.0.join("gone.yaml"), folder.0.join("gone.json")], Walk::Flat).unwrap_err();
        assert_eq!(faults.len(), 2);
        assert!(faults[0].message.starts_with("cannot be read: "), "{}", faults[0]);
    }

    #[test]
    fn faults_of_many_files_have_the_order_of_the_files() {
        let mut folder = Folder::new("many");
        for number in 100..200 {
            folder = folder.with(&format!("{number}.yaml"), if number % 3 == 0 { "a: [\n" } else { "a: 1\n" });
        }
        let faults = folder.names(Walk::Flat).unwrap_err();
        assert_eq!(faults.len(), 33);
        assert!(faults.is_sorted_by_key(|fault| &fault.place), "{faults:?}");
    }

    #[test]
    fn what_is_too_large_is_refused_without_reading_it() {
        let folder = Folder::new("large");
        let path = folder.0.join("large.yaml");
        // A sparse file takes no space and no time.
        fs::File::create(&path).unwrap().set_len(100 * 1024 * 1024).unwrap();
        let faults = read(&[path], Walk::Flat).unwrap_err();
        assert_eq!(faults[0].message, "more than 64 MiB: give smaller files");
        assert_eq!(bounded(io::repeat(b' ')).unwrap(), None);
    }
}
