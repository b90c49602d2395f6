//! Libraries of the user's own: LIBTORCH, ORT_DYLIB_PATH and PHOTOFINISH_LLAMACPP take precedence over set-up's, and
//! so does PHOTOFINISH_CUDA on a GPU.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use crate::pins::Pins;
use crate::tooling::BadInput;
use crate::{Piece, Provided};

/// The library that a variable of the environment names for this piece, with its absolute path: `None` if none does; an
/// error if it is unsuitable.
pub(crate) fn given(
    pins: &Pins,
    piece: Piece,
    variable: impl Fn(&str) -> Option<OsString>,
) -> std::result::Result<Option<Provided>, BadInput> {
    let name = piece.variable();
    let Some(value) = variable(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let value = Path::new(&value);
    let counts = match piece {
        Piece::Libtorch | Piece::Onnxruntime | Piece::Llamacpp | Piece::Cuda => true,
        // On a GPU, a library that was built for a CPU only does not count.
        Piece::LibtorchCuda => value.join("lib/libtorch_cuda.so").is_file(),
        Piece::OnnxruntimeCuda => value.with_file_name("libonnxruntime_providers_cuda.so").is_file(),
        Piece::Model | Piece::Nvcc | Piece::Zig => false,
    };
    if !counts {
        return Ok(None);
    }
    let needed = &pins.piece(piece).version;
    checked(piece, value, needed).map(Some).map_err(|problem| {
        let instead = match piece {
            Piece::Libtorch | Piece::Onnxruntime | Piece::Llamacpp => {
                format!("{}, or unset it and", piece.instead(needed))
            }
            _ => "unset it, and".to_owned(),
        };
        BadInput(format!("{name}={} {problem}; {instead} set-up downloads one", value.display()))
    })
}

/// A library of the user's own, or what is wrong with it.
pub(crate) fn checked(piece: Piece, path: &Path, needed: &str) -> std::result::Result<Provided, String> {
    let version = match piece {
        Piece::Libtorch | Piece::LibtorchCuda => libtorch(path, needed)?,
        Piece::Onnxruntime | Piece::OnnxruntimeCuda => onnxruntime(path)?,
        Piece::Llamacpp => llamacpp(path)?,
        _ => cuda(path)?,
    };
    // Builds run in other directories than the one that the user's path is relative to.
    let path = std::path::absolute(path).map_err(|error| format!("cannot be made absolute ({error})"))?;
    Ok(Provided { piece, path, version, given: true })
}

/// The version of a library, if it says one.
type Checked = std::result::Result<Option<String>, String>;

/// NVIDIA's packages, in the layout of its wheels: `cu13/lib`, `cudnn/lib`.
fn cuda(directory: &Path) -> Checked {
    let mut packages = fs::read_dir(directory).into_iter().flatten().flatten();
    match packages.any(|package| package.path().join("lib").is_dir()) {
        true => Ok(None),
        false => Err("holds no package of NVIDIA's with a directory lib".into()),
    }
}

/// The worker asks the library for its version, and refuses one that it is not written for.
fn llamacpp(directory: &Path) -> Checked {
    let mut files = fs::read_dir(directory).into_iter().flatten().flatten();
    match files.any(|file| file.file_name().to_string_lossy().starts_with("libllama.")) {
        true => Ok(None),
        false => Err("holds no libllama.so".into()),
    }
}

fn libtorch(directory: &Path, needed: &str) -> Checked {
    let libraries = ["libtorch_cpu.so", "libtorch.so", "libtorch_cpu.dylib", "torch_cpu.lib"];
    if !libraries.iter().any(|name| directory.join("lib").join(name).is_file()) {
        return Err("holds no lib/libtorch_cpu.so".into());
    }
    if !directory.join("include").is_dir() {
        return Err("holds no include/, which building the binding needs".into());
    }
    let version = libtorch_version(directory);
    match &version {
        Some(found) if found != needed => Err(format!("is libtorch {found}, but {needed} is needed")),
        _ => Ok(version),
    }
}

/// From `build-version` in the distributed archives, or from the headers.
fn libtorch_version(directory: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(directory.join("build-version")) {
        // 2.11.0+cpu
        return Some(text.trim().split('+').next().unwrap_or_default().to_owned());
    }
    let headers = ["include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"];
    headers.iter().find_map(|header| {
        let text = fs::read_to_string(directory.join(header)).ok()?;
        let number = |name: &str| {
            let definition = format!("#define TORCH_VERSION_{name} ");
            text.lines().find_map(|line| Some(line.strip_prefix(&definition)?.trim().to_owned()))
        };
        Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
    })
}

fn onnxruntime(file: &Path) -> Checked {
    if !file.is_file() {
        return Err("is not a file".into());
    }
    // The version is taken from the file's name if it has one; the worker asks the library itself.
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let version = name.split_once(".so.").map(|(_, version)| version.to_owned());
    Ok(version.filter(|version| version.contains('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(piece: Piece, value: &Path) -> Result<Option<Provided>, String> {
        let pins = toml::from_str(include_str!("../../../configs/native.toml")).unwrap();
        let variable = |asked: &str| (asked == piece.variable()).then(|| value.as_os_str().to_owned());
        for other in Piece::ALL.into_iter().filter(|other| other.variable() != piece.variable()) {
            assert!(super::given(&pins, other, variable).unwrap().is_none(), "{other}");
        }
        super::given(&pins, piece, variable).map_err(|error| error.to_string())
    }

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = directory.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        directory
    }

    const LIBRARY: (&str, &str) = ("lib/libtorch_cpu.so", "");
    const INCLUDED: (&str, &str) = ("include/x.h", "");
    const VERSION: (&str, &str) = ("build-version", "2.11.0+cpu\n");

    #[test]
    fn a_library_of_the_right_version_wins() {
        let torch = directory(&[LIBRARY, INCLUDED, VERSION]);
        let onnxruntime = directory(&[("libonnxruntime.so.1.30.0", "")]);
        let library = onnxruntime.path().join("libonnxruntime.so.1.30.0");
        for (piece, place, version) in
            [(Piece::Libtorch, torch.path(), "2.11.0"), (Piece::Onnxruntime, library.as_path(), "1.30.0")]
        {
            let provided = given(piece, place).unwrap().unwrap();
            assert_eq!((provided.version.as_deref(), provided.path.as_path()), (Some(version), place));
        }
        assert_eq!(given(Piece::Libtorch, Path::new("")), Ok(None), "an empty variable counts as unset");
    }

    #[test]
    fn a_library_without_cuda_is_given_for_no_gpu() {
        let cpu = directory(&[LIBRARY, INCLUDED, VERSION]);
        assert_eq!(given(Piece::LibtorchCuda, cpu.path()).unwrap(), None);
        let cuda = directory(&[LIBRARY, ("lib/libtorch_cuda.so", ""), INCLUDED, VERSION]);
        assert!(given(Piece::LibtorchCuda, cuda.path()).unwrap().is_some());
        let packages = directory(&[("cu13/lib/libcublas.so.13", "")]);
        assert_eq!(given(Piece::Cuda, packages.path()).unwrap().unwrap().path, packages.path());
    }

    #[test]
    fn an_unsuitable_library_is_refused_with_what_is_wrong_with_it() {
        let header = (
            "include/torch/headeronly/version.h",
            "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n",
        );
        let other = "is libtorch 2.9.1, but 2.11.0 is needed";
        for (piece, files, said) in [
            (Piece::Libtorch, &[LIBRARY, INCLUDED, ("build-version", "2.9.1")][..], other),
            (Piece::Libtorch, &[LIBRARY, INCLUDED, header], other),
            (Piece::Libtorch, &[INCLUDED], "no lib/libtorch_cpu.so"),
            (Piece::Libtorch, &[LIBRARY], "no include/"),
            (Piece::Onnxruntime, &[("libonnxruntime.so.1.30.0", "")], "is not a file"),
            (Piece::Llamacpp, &[("libllama-common.so", "")], "no libllama.so"),
            (Piece::Cuda, &[INCLUDED], "no package of NVIDIA's"),
        ] {
            let error = given(piece, directory(files).path()).unwrap_err();
            assert!(error.contains(said) && error.contains("unset it"), "{piece}: {error}");
        }
    }
}
