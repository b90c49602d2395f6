use std::fs;

use super::*;
use crate::modules::modules;

/// Modules in a cycle of a crate with these files.
fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = directory.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let modules = modules(&directory.path().join("lib.rs")).unwrap();
    cycles(&modules).into_iter().map(|cycle| cycle.modules).collect()
}

const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\nstruct Root;\n");
const PLAIN: (&str, &str) = ("c.rs", "pub struct C;\n");
const B: (&str, &str) =
    ("b.rs", "use crate::a::A;\npub struct B(A);\npub mod inner {\n    pub struct Deep;\n}\n");

/// A crate in which `b` uses `a`, and `a` is this text.
fn with(a: &str) -> Vec<Vec<String>> {
    found(&[ROOT, ("a.rs", a), B, PLAIN])
}

#[test]
fn uses_in_one_direction_are_no_cycle() {
    assert_eq!(with("use crate::c::C;\nuse crate::Root;\npub struct A(C, Root);\n"), [[""; 0]; 0]);
}

#[test]
fn a_cycle_is_found_however_the_use_is_written() {
    for a in [
        "use crate::b::B;\npub struct A;",
        "use crate::{c::C, b::{self, inner::Deep as D}};\npub struct A;",
        "use super::b as other;\npub struct A;",
        "pub struct A;\nfn f(_: &crate::b::B) {}",
        "pub struct A;\nfn f() {\n    println!(\"{}\", crate::b::inner::N);\n}",
        "#[derive(Debug)]\n#[serde(with = \"crate::b\")]\npub struct A;",
        "pub struct A;\nmod part {\n    use super::super::b::B;\n}",
        "use crate::*;\npub struct A;\nfn f() {\n    b::f();\n}",
    ] {
        assert_eq!(with(a), [["a", "b"]], "{a}");
    }
}

#[test]
fn what_is_compiled_for_tests_alone_is_left_out() {
    for a in [
        "pub struct A;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}",
        "pub struct A;\n#[cfg(test)]\nmod missing;",
        "pub struct A;\n#[test]\nfn t() {\n    crate::b::f();\n}",
        "pub struct A;\n// use crate::b::B;\nconst TEXT: &str = \"use crate::b::B\";",
    ] {
        assert_eq!(with(a), [[""; 0]; 0], "{a}");
    }
    assert_eq!(with("#[cfg(not(test))]\nuse crate::b::B;\npub struct A;"), [["a", "b"]]);
}

#[test]
fn names_are_followed_to_the_module_that_they_were_brought_in_from() {
    let root = |line: &str| ("lib.rs", format!("mod a;\nmod b;\n{line}\n"));
    for line in ["pub use b::B;", "pub use b::*;", "pub use b::inner::Deep as B;"] {
        let (name, root) = root(line);
        assert_eq!(
            found(&[(name, &root), ("a.rs", "use crate::B;\npub struct A;"), B]),
            [["a", "b"]],
            "{line}"
        );
    }
}

#[test]
fn parts_of_one_module_are_held_to_it_too() {
    let files = [
        ("lib.rs", "mod judge;"),
        ("judge/mod.rs", "mod metrics;\nmod parity;\npub struct Shared;\nuse metrics::M;"),
        ("judge/metrics.rs", "use super::{Shared, parity::P};\npub struct M;"),
        ("judge/parity.rs", "use super::Shared;\npub struct P;"),
    ];
    assert_eq!(found(&files), [[""; 0]; 0]);
    let mut files = files;
    files[3].1 = "use super::metrics::M;\npub struct P;";
    assert_eq!(found(&files), [["judge::metrics", "judge::parity"]]);
}

#[test]
fn a_longer_cycle_names_its_modules_and_the_files_of_its_uses() {
    let directory = tempfile::tempdir().unwrap();
    let files =
        [ROOT, ("a.rs", "use crate::c::C;"), ("b.rs", "use crate::a::A;"), ("c.rs", "use crate::b::B;")];
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let cycles = cycles(&modules(&directory.path().join("lib.rs")).unwrap());
    assert_eq!(cycles.len(), 1);
    assert_eq!(cycles[0].modules, ["a", "b", "c"]);
    let uses: Vec<_> = cycles[0]
        .uses
        .iter()
        .map(|(from, to, file)| (from.as_str(), to.as_str(), file.file_name().unwrap().to_str().unwrap()))
        .collect();
    assert_eq!(uses, [("a", "c", "a.rs"), ("b", "a", "b.rs"), ("c", "b", "c.rs")]);
}
