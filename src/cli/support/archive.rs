//! A tar archive in gzip.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io;
use tar::{Builder, Header};

/// The `files`, each a name and a text, as `.tar.gz`. The time is that of all files, in seconds since 1970.
///
/// # Errors
/// If a name is no relative path.
pub(super) fn gzipped(files: &[(String, String)], time: i64) -> io::Result<Vec<u8>> {
    let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, text) in files {
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(time.try_into().unwrap_or_default());
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, name, text.as_bytes())?;
    }
    tar.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tar_reads_what_is_written_under_names_of_any_length() {
        let folder = std::env::temp_dir().join(format!("scpol-archive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.tar.gz");
        let long = |end: &str| format!("pods/{}{end}/log.txt", "x".repeat(250));
        let files = [
            ("a.txt".to_owned(), String::new()),
            ("b.yaml".to_owned(), "b: 1\n".repeat(30_000)),
            (long("1"), "one\n".to_owned()),
            (long("2"), "two\n".to_owned()),
        ];
        std::fs::write(&path, gzipped(&files, 1_700_000_000).unwrap()).unwrap();
        let tar = |arguments: &[&str]| Command::new("tar").args(arguments).arg(&path).output().unwrap();
        let listed = tar(&["-tzf"]);
        assert!(listed.status.success(), "{listed:?}");
        let names = files.iter().map(|(name, _)| format!("{name}\n")).collect::<String>();
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), names);
        let all = tar(&["-xzOf"]);
        assert_eq!(String::from_utf8(all.stdout).unwrap(), files.map(|(_, text)| text).concat());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
