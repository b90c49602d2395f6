//! Compiles the C++ in `src` against the headers of the libtorch that torch-sys links, and lets the worker
//! and its tests find that libtorch without `LD_LIBRARY_PATH`. A worker built for other machines does not
//! contain this machine's path to libtorch; there the installed driver sets the path.

use std::path::{Path, PathBuf};

/// Set by `cargo xtask dist`.
const RELOCATABLE: &str = "PHOTOFINISH_RELOCATABLE";

fn main() {
    for input in [
        "build.rs",
        "src/native.cpp",
        "src/older.cpp",
        "src/profile.cpp",
        "src/script.cpp",
        "src/shim.cpp",
        "src/trace.cpp",
        "src/shim.h",
    ] {
        println!("cargo::rerun-if-changed={input}");
    }
    for variable in ["LIBTORCH_INCLUDE", "LIBTORCH_CXX11_ABI", RELOCATABLE] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // torch-sys sets this for its direct dependents (its `links` key is `tch`), but not on Windows.
    let libraries = std::env::var("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from);
    let libraries =
        libraries.expect("torch-sys names its libtorch on Linux and macOS alone; build this crate there");
    let on_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    compile_shim(&libraries, on_linux);
    let arguments = link_arguments(&libraries, on_linux);
    for argument in &arguments {
        println!("cargo::rustc-link-arg={argument}");
    }
    // For crates that link this one: cargo does not pass on linker arguments. 0x1f separates them.
    println!("cargo::metadata=LINK_ARGS={}", arguments.join("\u{1f}"));
}

fn compile_shim(libraries: &Path, on_linux: bool) {
    // As in torch-sys, headers are next to the libraries unless the environment names another place.
    let root = match std::env::var_os("LIBTORCH_INCLUDE") {
        Some(directory) => PathBuf::from(directory),
        None => libraries.parent().expect("libraries are in a directory `lib`").to_path_buf(),
    };
    let include = root.join("include");
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
    let mut build = cc::Build::new();
    if on_linux {
        // `at::parallel_for` is a template: without this it is compiled into a loop on one thread. On other
        // systems the compiler may lack OpenMP; the shim then leaves out everything that needs such loops.
        build.flag("-fopenmp");
    }
    if std::env::var_os(RELOCATABLE).is_some() && on_linux {
        // Machines with a libstdc++ that is older than this one's lack symbols of it.
        build.file("src/older.cpp");
    }
    build
        .cpp(true)
        .std("c++17")
        .warnings(false) // libtorch's headers have many
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", Some(abi.as_str()))
        .file("src/native.cpp")
        .compile("engine_tch_shim");
}

/// Puts a link to the library where this crate's build looks for libraries first.
fn link_to(library: &Path, name: &str) {
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let link = directory.join(name);
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(library, &link).expect("OUT_DIR can be written");
    println!("cargo::rustc-link-search=native={}", directory.display());
}

fn path_of_libstdcxx() -> String {
    let compiler = cc::Build::new().cpp(true).get_compiler();
    let told = compiler.to_command().arg("-print-file-name=libstdc++.so").output();
    let told = told.expect("the C++ compiler runs, it has compiled the shim");
    String::from_utf8(told.stdout).expect("a path of the compiler's is text").trim().to_owned()
}

fn link_arguments(libraries: &Path, on_linux: bool) -> Vec<String> {
    let mut arguments = Vec::new();
    if std::env::var_os(RELOCATABLE).is_none() {
        arguments.push(format!("-Wl,-rpath,{}", libraries.display()));
    }
    if !on_linux {
        return arguments;
    }
    // The shim's parallel regions must use libtorch's own OpenMP, whatever its file is called.
    let is_openmp = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("libgomp"))
    };
    let held = std::fs::read_dir(libraries).into_iter().flatten().flatten().map(|entry| entry.path());
    match held.into_iter().find(is_openmp) {
        Some(library) => {
            // torch-sys names it too, by a name that only a compiler's own directory has.
            link_to(&library, "libgomp.so");
            arguments.push(library.display().to_string());
        }
        None => arguments.push("-lgomp".to_owned()),
    }
    if std::env::var_os(RELOCATABLE).is_some() {
        // By its path: the linker of `cargo xtask dist` takes its name for that of another C++ library, which libtorch
        // does not use.
        arguments.push(path_of_libstdcxx());
    }
    // No symbol of the CUDA library is referenced: it registers its kernels when it is loaded. A
    // linker that keeps only needed libraries would drop it, and CUDA with it.
    if libraries.join("libtorch_cuda.so").exists() {
        arguments.push("-Wl,--no-as-needed,-ltorch_cuda,--as-needed".to_owned());
    }
    arguments
}
