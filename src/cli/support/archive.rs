//! A tar archive in gzip. Both formats are so small for whole files in memory that no library is needed.

/// The size of the blocks of tar.
const BLOCK: usize = 512;
/// The most bytes of a stored block of deflate.
const STORED: usize = 0xffff;

/// The `files`, each a name of at most 100 bytes and a text, as `.tar.gz`. The time is that of all files, in seconds since 1970.
/// Nothing is compressed: the blocks of deflate are stored ones.
pub(super) fn gzipped(files: &[(String, String)], time: i64) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, text) in files {
        tar.extend(header(name, text.len(), time));
        tar.extend(text.as_bytes());
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    }
    tar.resize(tar.len() + 2 * BLOCK, 0);
    // RFC 1952: the magic, deflate, no flags, no time, no extra flags, an unknown system.
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut blocks = tar.chunks(STORED).peekable();
    while let Some(block) = blocks.next() {
        out.push(u8::from(blocks.peek().is_none()));
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    out.extend(checksum(&tar).to_le_bytes());
    let length = u32::try_from(tar.len() & 0xffff_ffff).unwrap_or_default();
    out.extend(length.to_le_bytes());
    out
}

/// The header of a regular file (POSIX.1-1988, ustar).
fn header(name: &str, size: usize, time: i64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    let name = &name.as_bytes()[..name.len().min(100)];
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", time.max(0)).as_bytes());
    // The sum is that of a header with blanks here.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// The CRC-32 of `bytes`, as gzip has it.
fn checksum(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let next = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 })
    };
    !bytes.iter().fold(u32::MAX, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn tar_reads_what_is_written() {
        let folder = std::env::temp_dir().join(format!("scpol-archive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.tar.gz");
        let files = [("a.txt", String::new()), ("b.yaml", "b: 1\n".repeat(30_000)), ("c", "c".repeat(512))];
        let files = files.map(|(name, text)| (name.to_owned(), text));
        std::fs::write(&path, gzipped(&files, 1_700_000_000)).unwrap();
        let tar = |arguments: &[&str]| Command::new("tar").args(arguments).arg(&path).output().unwrap();
        let listed = tar(&["-tzf"]);
        assert!(listed.status.success(), "{listed:?}");
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "a.txt\nb.yaml\nc\n");
        let all = tar(&["-xzOf"]);
        assert_eq!(String::from_utf8(all.stdout).unwrap(), files.map(|(_, text)| text).concat());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
