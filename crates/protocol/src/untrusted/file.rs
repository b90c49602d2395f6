//! Files from others. Any path is opened here: a regular file of bounded size, or an error at once.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Most bytes of a configuration, a manifest, or a model's description.
pub const CONFIG: u64 = 16 << 20;
/// Most bytes of prompts, plans, tokens or a tokenizer.
pub const INPUT: u64 = 64 << 20;
/// Most bytes of a journal, a report or a history.
pub const RESULTS: u64 = 4 << 30;

/// Opens a regular file, by way of links or not. A pipe, a device or a directory is an error, and nothing waits for the
/// other end of a pipe.
///
/// # Errors
/// Any error of the system, and [`ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// `O_NONBLOCK` of Linux on all processors that Rust's standard library has, but MIPS and SPARC (open(2)).
#[cfg(target_os = "linux")]
const NONBLOCK: i32 = 0o4000;

/// Flushes a directory, so that new names survive a crash of the machine. No effect outside Unix.
///
/// # Errors
/// Any error of the system.
pub fn sync_directory(directory: &Path) -> Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// As of [`open`], [`ErrorKind::FileTooLarge`], and [`ErrorKind::InvalidInput`] for a pointer to the file.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {} MiB", most >> 20)));
    }
    match pointer(&bytes) {
        Some(reason) => Err(Error::new(ErrorKind::InvalidInput, reason)),
        None => Ok(bytes),
    }
}

/// The text of such a file, without the mark (U+FEFF) that some editors of Windows put at its beginning.
///
/// # Errors
/// As for [`read`], and [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    let text = String::from_utf8(read(path, most)?);
    let mut text = text.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

// What a file is by its first bytes. Each sentence says what to do, and none has the file's name.

/// What a file is if a clone of a repository has a pointer to it in its place.
fn pointer(bytes: &[u8]) -> Option<String> {
    let again = "or download the file again";
    if bytes.starts_with(b"# xet version 0") {
        return Some(format!("it is a Xet pointer, not the file itself: fetch it with git-xet, {again}"));
    }
    // The first is that of Git LFS since 2014 (its docs/spec.md), the second an older one.
    let specs: [&[u8]; 2] =
        [b"version https://git-lfs.github.com/spec/v", b"version https://hawser.github.com/spec/v"];
    if !specs.iter().any(|spec| bytes.starts_with(spec)) {
        return None;
    }
    let text = std::str::from_utf8(&bytes[..bytes.len().min(1024)]).unwrap_or_default();
    let size = text.lines().find_map(|line| line.strip_prefix("size ")?.parse::<u64>().ok());
    let size = size.map(|size| format!(", which has {size} bytes")).unwrap_or_default();
    Some(format!(
        "it is a Git LFS pointer, not the file itself{size}: run `git lfs pull` in its repository, {again}"
    ))
}

/// What a file is if something else was downloaded in its place: a pointer, a web page, a message of the hub. `None` of
/// anything that may be the file.
pub fn substitute(bytes: &[u8]) -> Option<String> {
    const PAGES: [&str; 4] = ["<!doctype", "<html", "<head", "<?xml"];
    const MESSAGES: [&str; 6] = [
        "Entry not found",
        "Repository not found",
        "Invalid username or password",
        "Access to model ",
        "Access to dataset ",
        "{\"error\":",
    ];
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let begins =
        |with: &str| start.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()));
    if PAGES.iter().any(|page| begins(page)) {
        let what = "it is a web page, not the file itself: download it again, from an address with /resolve/ in \
                    place of /blob/, or after you have logged in";
        return Some(what.into());
    }
    if MESSAGES.iter().any(|message| begins(message)) {
        let message = super::shortened(&String::from_utf8_lossy(&start[..start.len().min(400)]), 200);
        return Some(format!(
            "it holds a server's answer in place of the file ({message}): check the address and your access, and \
             download it again"
        ));
    }
    pointer(bytes)
}

/// Formats by their first bytes: the place of these, the bytes, and the sentence about a file that should be a model.
const FORMATS: [(usize, &[u8], &str); 21] = [
    (0, b"GGUF", "it is a GGUF file: give it a name that ends in .gguf"),
    (0, b"PK\x03\x04", ARCHIVE),
    (0, b"PK\x05\x06", ARCHIVE),
    (0, b"\x80\x02", PICKLE),
    (0, b"\x80\x03", PICKLE),
    (0, b"\x80\x04", PICKLE),
    (0, b"\x80\x05", PICKLE),
    (0, b"lmgg", GGML),
    (0, b"fmgg", GGML),
    (0, b"tjgg", GGML),
    (0, b"algg", GGML),
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        "it is an HDF5 file of Keras or TensorFlow: convert the model to safetensors or ONNX",
    ),
    (4, b"TFL3", "it is a TensorFlow Lite file: convert the model to ONNX"),
    (4, b"ORTM", "it is in ONNX Runtime's own format: name the ONNX file that it was made from"),
    (0, b"\x93NUMPY", "it is a NumPy array, not a model"),
    (0, b"\x1f\x8b", COMPRESSED),
    (0, b"\xfd7zXZ\0", COMPRESSED),
    (0, b"\x28\xb5\x2f\xfd", COMPRESSED),
    (0, b"BZh", COMPRESSED),
    (0, b"7z\xbc\xaf\x27\x1c", COMPRESSED),
    (257, b"ustar", COMPRESSED),
];
const ARCHIVE: &str = "it is a zip file: unpack it, or convert PyTorch's .bin or .pt to safetensors with transformers' \
                       save_pretrained";
const PICKLE: &str = "it is a pickle of Python's, which can run code when it is read: convert it to safetensors with \
                      transformers' save_pretrained";
const GGML: &str = "it is a ggml file from before GGUF: convert the model anew, or download it as GGUF";
const COMPRESSED: &str = "it is a compressed file or an archive: unpack it first";

/// What a file is that should be a model and has another format. `None` if its first bytes do not say.
pub fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let start = &bytes[..bytes.len().min(512)];
    if start.iter().all(|&byte| byte == 0) {
        return Some(match bytes {
            [] => "it is empty: download it again",
            _ => "it begins with zeros, as a download does that was interrupted: download it again",
        });
    }
    let is =
        |(at, magic, _): &&(usize, &[u8], &str)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic));
    FORMATS.iter().find(is).map(|(_, _, sentence)| *sentence)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_what_a_file_is() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 538090408\n";
        for (bytes, part) in [
            (&pointer[..], "which has 538090408 bytes: run `git lfs pull`"),
            (b"version https://hawser.github.com/spec/v1\n", "Git LFS pointer"),
            (b"# xet version 0\n", "git-xet"),
            (b"\xef\xbb\xbf \n<!DOCTYPE html>", "/resolve/"),
            (b"<HTML>", "web page"),
            (b"Entry not found", "(Entry not found)"),
            (b"{\"error\":\"Invalid credentials\"}", "Invalid credentials"),
        ] {
            let sentence = substitute(bytes).unwrap_or_default();
            assert!(sentence.contains(part), "{sentence}");
        }
        for bytes in [&b"GGUF\x03"[..], b"{\"a\": 1}", b"", b"version 2", b"<s>", &[0; 600]] {
            assert_eq!(substitute(bytes), None);
        }
        let tar = [&[1; 257][..], b"ustar"].concat();
        for (bytes, part) in [
            (&b"PK\x03\x04archive/data.pkl"[..], "save_pretrained"),
            (b"\x80\x02\x8a\x0a", "pickle"),
            (b"tjgg\x03", "before GGUF"),
            (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
            (&tar, "unpack"),
            (&[0; 600], "zeros"),
            (b"", "empty"),
        ] {
            let sentence = other_format(bytes).unwrap_or_default();
            assert!(sentence.contains(part), "{sentence}");
        }
        assert_eq!(other_format(b"\x10\0\0\0\0\0\0\0{\"a\""), None);
    }

    #[test]
    fn what_is_no_file_of_that_size_is_refused_at_once() {
        let directory = std::env::temp_dir().join(format!("photofinish-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("file");
        std::fs::write(&file, "\u{feff}four").unwrap();
        assert_eq!(read_text(&file, 7).unwrap(), "four");
        std::fs::write(&file, "four").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "four");
        let kind = |path: &Path, most| read(path, most).map(drop).unwrap_err().kind();
        assert_eq!(kind(&file, 3), ErrorKind::FileTooLarge);
        for path in [directory.as_path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert_eq!(kind(path, 4), ErrorKind::InvalidInput, "{}", path.display());
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
