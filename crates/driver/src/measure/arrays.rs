//! Arrays in NumPy's files, `.npy` and `.npz`: inputs of an ONNX file, and outputs of its runs
//! (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bundle::{Dtype, Graph, hexadecimal};
use comparison::plan::work::graph::{Given, dims};
use comparison::plan::{Failure, GraphAsked, InputAsked, Result};
use npyz::{NpyHeader, Order};
use protocol::{Tensor, untrusted};
use sha2::{Digest, Sha256};

use crate::measure::media;
use crate::measure::places::Places;

const MOST: u64 = 1 << 32;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Most bytes of a header: NumPy's limit.
const MOST_OF_HEADER: usize = 10_000;

/// Names of NumPy's types of little-endian numbers, as written in files.
const CODES: [(&str, Dtype); 12] = [
    ("<f2", Dtype::Float16),
    ("<f4", Dtype::Float32),
    ("<f8", Dtype::Float64),
    ("|i1", Dtype::Int8),
    ("<i2", Dtype::Int16),
    ("<i4", Dtype::Int32),
    ("<i8", Dtype::Int64),
    ("|u1", Dtype::Uint8),
    ("<u2", Dtype::Uint16),
    ("<u4", Dtype::Uint32),
    ("<u8", Dtype::Uint64),
    ("|b1", Dtype::Bool),
];

/// The inputs that are given, from files or typed, by input. Their numbers are put into the cache, where workers read
/// them.
pub fn given(asked: &GraphAsked, graph: Option<&Graph>, places: &Places) -> Result<BTreeMap<String, Given>> {
    let mut all = BTreeMap::new();
    for (name, asked_input) in &asked.inputs {
        // A name that the graph does not have is refused with those that it has.
        let Some(input) = graph.and_then(|graph| graph.inputs.iter().find(|input| input.name == *name))
        else {
            continue;
        };
        let path = asked_input.path().map(|path| path.display().to_string()).unwrap_or_default();
        let refused = |why: String| Failure::usage(format!("--input {name}={path}: {why}"));
        let bytes = match asked_input.path() {
            Some(path) => untrusted::file::read(path, MOST).map_err(|error| refused(error.to_string()))?,
            None => Vec::new(),
        };
        let found = match asked_input {
            InputAsked::Drawn { .. } => continue,
            InputAsked::Numbers(numbers) => media::numbers(numbers, input),
            InputAsked::Picture { low, high, .. } => media::picture(&bytes, (*low, *high), input),
            InputAsked::Sound { hop, .. } => media::sound(&bytes, *hop, (input, &asked.dims)),
            InputAsked::File(path) => {
                let is_archive =
                    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npz"));
                let (dtype, shape, numbers) = array(&bytes, is_archive, name).map_err(refused)?;
                // With a dimension more than the input, it has a part for each run.
                let has_runs = input.shape.as_ref().is_some_and(|input| input.len() + 1 == shape.len());
                let (runs, shape) = match shape.split_first() {
                    Some((&runs, rest)) if has_runs => (runs, rest.to_vec()),
                    _ => (1, shape),
                };
                let numbers = kept(&numbers, &places.cache.join("inputs"))?;
                all.insert(name.clone(), Given { dtype, shape, numbers, runs });
                continue;
            }
        };
        let (shape, data, runs) = found.map_err(refused)?;
        let numbers = kept(&data, &places.cache.join("inputs"))?;
        all.insert(name.clone(), Given { dtype: input.dtype, shape, numbers, runs });
    }
    Ok(all)
}

/// The array of an archive with the input's name, or its only one.
fn member(bytes: &[u8], input: &str) -> std::result::Result<Vec<u8>, String> {
    let broken = |error: zip::result::ZipError| format!("it is no .npz file: {error}");
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    let names: Vec<String> = archive
        .file_names()
        .map(|name| name.map(Cow::into_owned))
        .collect::<std::result::Result<_, _>>()
        .map_err(broken)?;
    let wanted = format!("{input}.npy");
    let name = match names.as_slice() {
        [only] => only,
        names => names.iter().find(|name| **name == wanted).ok_or_else(|| {
            let arrays: Vec<&str> = names.iter().map(|name| name.trim_end_matches(".npy")).collect();
            format!("it has no array {input}; it has {}", arrays.join(", "))
        })?,
    };
    let file = archive.by_name(name).map_err(broken)?;
    // An archive of a few bytes may unpack to any number of them.
    let most = file.size().min(MOST);
    let mut file = file.take(most);
    let mut array = Vec::new();
    let mut read = |most: usize, array: &mut Vec<u8>| {
        file.by_ref()
            .take(most as u64)
            .read_to_end(array)
            .map_err(|error| format!("it is no .npz file: {error}"))
    };
    read(MOST_OF_HEADER + 12, &mut array)?;
    let needed = described(&array)?.numbers.end;
    read(needed.saturating_sub(array.len()), &mut array)?;
    Ok(array)
}

/// The array of an input from the bytes of a `.npy` or, if they are an archive, a `.npz` file: type, shape
/// and numbers.
///
/// # Errors
/// A sentence without the file's name.
pub fn array(
    bytes: &[u8],
    is_archive: bool,
    input: &str,
) -> std::result::Result<(Dtype, Vec<usize>, Vec<u8>), String> {
    if let Some(reason) = untrusted::file::substitute(bytes) {
        return Err(reason);
    }
    let file = if is_archive { Cow::from(member(bytes, input)?) } else { Cow::from(bytes) };
    let (dtype, shape, numbers) = parse(&file)?;
    Ok((dtype, shape, numbers.to_vec()))
}

fn parse(bytes: &[u8]) -> std::result::Result<(Dtype, Vec<usize>, &[u8]), String> {
    let Described { dtype, shape, numbers } = described(bytes)?;
    let numbers = bytes
        .get(numbers)
        .ok_or_else(|| format!("it ends before its last number: its shape is {}", dims(&shape)))?;
    Ok((dtype, shape, numbers))
}

/// What the header of an array says, and where its numbers must be.
struct Described {
    dtype: Dtype,
    shape: Vec<usize>,
    numbers: Range<usize>,
}

/// Reads a header. Nothing after it is needed.
fn described(bytes: &[u8]) -> std::result::Result<Described, String> {
    check_header(bytes)?;
    let mut rest = bytes;
    let header = NpyHeader::from_reader(&mut rest).map_err(|error| format!("it is no .npy file: {error}"))?;
    let code = header.dtype().descr().trim_matches('\'').to_owned();
    let Some((_, dtype)) = CODES.iter().find(|(known, _)| *known == code) else {
        return Err(format!("its numbers are of type {code}, which no input takes here"));
    };
    let shape: Vec<usize> =
        header.shape().iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX)).collect();
    if header.order() == Order::Fortran && shape.len() > 1 {
        return Err("its numbers are column by column: write it with numpy.ascontiguousarray".into());
    }
    // Also of an array without a number, whose other sizes would overflow elsewhere.
    let sizes = shape.iter().filter(|&&size| size > 0);
    let most = sizes.fold(dtype.bytes(), |bytes, &size| bytes.saturating_mul(size));
    if most as u64 > MOST {
        return Err(format!("it is larger than {} GiB: its shape is {}", MOST >> 30, dims(&shape)));
    }
    let start = bytes.len() - rest.len();
    let length = if shape.contains(&0) { 0 } else { most };
    Ok(Described { dtype: *dtype, shape, numbers: start..start + length })
}

/// Rejects a header for which the library would need much memory or a deep stack, before parsing it.
fn check_header(bytes: &[u8]) -> std::result::Result<(), String> {
    // Version 1.0 of the format has the length in two bytes, the later ones in four.
    let (length, start) = match bytes {
        [_, _, _, _, _, _, 1, _, low, high, ..] => (u32::from(u16::from_le_bytes([*low, *high])), 10),
        [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]), 12),
        // Too short for any header.
        _ => return Ok(()),
    };
    if !bytes.starts_with(MAGIC) {
        return Ok(());
    }
    let header = bytes.get(start..start + length as usize).filter(|header| header.len() <= MOST_OF_HEADER);
    let Some(header) = header else {
        return Err(format!("it is no .npy file: it says that its header has {length} bytes"));
    };
    // One is the header's own, one the shape's.
    if header.iter().filter(|byte| b"([{".contains(byte)).count() > 2 {
        return Err("its numbers are records, which no input takes here".into());
    }
    Ok(())
}

/// The file with these bytes, named after them.
pub(crate) fn kept(numbers: &[u8], directory: &Path) -> Result<PathBuf> {
    let path = directory.join(format!("{}.bin", hexadecimal(&Sha256::digest(numbers)[..16])));
    if path.is_file() {
        return Ok(path);
    }
    let written = || {
        std::fs::create_dir_all(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        std::io::Write::write_all(&mut file, numbers)?;
        file.persist(&path)?;
        Ok::<_, std::io::Error>(())
    };
    written().map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    Ok(path)
}

/// A tensor as a `.npy` file, version 1.0 of the format. `None` if NumPy does not have its type.
pub fn npy(tensor: &Tensor) -> Option<Vec<u8>> {
    const START: &[u8] = b"\x93NUMPY\x01\x00";
    /// The numbers begin at a multiple of this.
    const ALIGNMENT: usize = 64;
    let dtype = Dtype::from_name(&tensor.dtype)?;
    let (code, _) = CODES.iter().find(|(_, known)| *known == dtype)?;
    let sizes: String = tensor.shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header =
        format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    let before = START.len() + 2;
    let length = (before + header.len() + 1).next_multiple_of(ALIGNMENT) - before;
    header.push_str(&" ".repeat(length - header.len() - 1));
    header.push('\n');
    let mut file = START.to_vec();
    file.extend(u16::try_from(header.len()).ok()?.to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(&tensor.data);
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], dtype: Dtype) -> Tensor {
        let bytes = shape.iter().product::<usize>() * dtype.bytes();
        Tensor {
            name: "y".into(),
            dtype: dtype.name().into(),
            shape: shape.to_vec(),
            data: (0..bytes).map(|byte| byte as u8).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for dtype in Dtype::ALL {
            for shape in [&[][..], &[3], &[2, 0], &[2, 3, 1]] {
                let tensor = tensor(shape, dtype);
                let file = npy(&tensor).unwrap();
                assert_eq!(file.len() % 64, tensor.data.len() % 64);
                assert_eq!(parse(&file), Ok((dtype, shape.to_vec(), &tensor.data[..])), "{dtype} {shape:?}");
            }
        }
    }

    #[test]
    fn a_file_that_is_no_array_or_is_cut_off_is_one_sentence() {
        assert!(parse(b"hello").unwrap_err().starts_with("it is no .npy file"));
        let file = npy(&tensor(&[5], Dtype::Int64)).unwrap();
        assert!(parse(&file[..file.len() - 1]).unwrap_err().contains("ends before its last number"));
        let turned =
            String::from_utf8_lossy(&npy(&tensor(&[2, 2], Dtype::Int8)).unwrap()).replace("False", "True ");
        // Text conversion has changed the first byte; restore it.
        let mut turned = turned.into_bytes();
        turned.splice(..turned.iter().position(|&byte| byte == b'N').unwrap(), [0x93]);
        assert!(parse(&turned).unwrap_err().contains("ascontiguousarray"));
        let big = npy(&tensor(&[1], Dtype::Int64))
            .unwrap()
            .into_iter()
            .map(|byte| if byte == b'<' { b'>' } else { byte });
        assert!(parse(&big.collect::<Vec<u8>>()).unwrap_err().contains("type >i8"));
    }

    #[test]
    fn a_header_that_would_exhaust_memory_or_stack_is_refused_before_it_is_read() {
        let file = |length: u32, header: &[u8]| [MAGIC, &[2, 0], &length.to_le_bytes(), header].concat();
        for (length, header) in [(u32::MAX, &b"{}"[..]), (9, b"{}"), (20_000, &[b' '; 20_000])] {
            assert!(parse(&file(length, header)).unwrap_err().contains(&format!("{length} bytes")));
        }
        let nested = file(9_000, &[b'('; 9_000]);
        assert!(parse(&nested).unwrap_err().contains("records"));
        let records = b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }";
        assert!(parse(&file(records.len() as u32, records)).unwrap_err().contains("records"));
        assert!(parse(&file(2, b"{}")).unwrap_err().starts_with("it is no .npy file"));
        // Of no number, but with a size that overflows in products.
        let none = b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808, 0), }";
        assert!(parse(&file(none.len() as u32, none)).unwrap_err().contains("larger than 4 GiB"));
    }

    #[test]
    fn an_archive_gives_the_array_of_the_input_s_name_or_its_only_one() {
        let tensor = tensor(&[2], Dtype::Int16);
        let archive = |names: &[&str]| {
            let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
            for name in names {
                archive.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
                std::io::Write::write_all(&mut archive, &npy(&tensor).unwrap()).unwrap();
            }
            archive.finish().unwrap().into_inner()
        };
        let expected = Ok((Dtype::Int16, vec![2], tensor.data.clone()));
        assert_eq!(array(&archive(&["other.npy"]), true, "x"), expected);
        let two = archive(&["other.npy", "x.npy"]);
        assert_eq!(array(&two, true, "x"), expected);
        assert!(array(&two, true, "y").unwrap_err().contains("it has other, x"));
        assert!(array(&two[..two.len() / 2], true, "x").unwrap_err().starts_with("it is no .npz file"));
    }
}
