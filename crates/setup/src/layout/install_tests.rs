use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;
use crate::Piece;

const PIECE: Piece = Piece::Libtorch;

/// Fetches one wheel into a directory.
type FetchOne<'a> = &'a dyn Fn(&Wheel, &Path) -> Result<PathBuf>;

/// What fetches where there is no network.
fn broken(_: &Wheel, directory: &Path) -> Result<PathBuf> {
    fs::write(directory.join("half.whl"), "PK")?;
    bail!("the network is off")
}

struct Fixture {
    cache: tempfile::TempDir,
    pin: Pin,
    /// A tiny one.
    wheel: Vec<u8>,
    /// How often it was fetched.
    fetched: AtomicUsize,
}

const MEMBERS: [(&str, &str); 4] = [
    ("t/lib/a.so", "library"),
    ("t/include/x/y.h", "header"),
    ("t/include/z.h", ""),
    ("t/other", "unwanted"),
];

impl Fixture {
    fn new() -> Self {
        Self::with_members(&MEMBERS)
    }

    fn with_members(members: &[(&str, &str)]) -> Self {
        let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, text) in members {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
        }
        let wheel = writer.finish().unwrap().into_inner();
        let rules = [("t/lib/a.so", "lib/a.so"), ("t/include/", "include/")];
        let pin = Pin {
            version: "1.0".into(),
            directory: "piece-1.0".into(),
            wheels: vec![Wheel {
                requirement: "t==1.0".into(),
                sha256: receipt::hexadecimal(&Sha256::digest(&wheel)),
                bytes: wheel.len() as u64,
                extract: rules.map(|(from, to)| (from.to_owned(), to.to_owned())).into(),
            }],
            write: [("lib/link.so".to_owned(), "INPUT(a.so)\n".to_owned())].into(),
        };
        Self { cache: tempfile::tempdir().unwrap(), pin, wheel, fetched: AtomicUsize::new(0) }
    }

    fn install(&self) -> Result<()> {
        self.install_by(&|_, directory| {
            self.fetched.fetch_add(1, Ordering::Relaxed);
            let file = directory.join("some.whl");
            fs::write(&file, &self.wheel)?;
            Ok(file)
        })
    }

    fn install_by(&self, fetch: FetchOne<'_>) -> Result<()> {
        let wanted = Wanted {
            name: PIECE.to_string(),
            pin: self.pin.clone(),
            tags: Vec::new(),
            instead: String::new(),
        };
        let archive = |wheel: &Wheel, directory: &Path| {
            Ok(Archive { file: fetch(wheel, directory)?, name: String::new() })
        };
        let fetch: Fetch<'_> =
            &|wheels, directory| Ok(wheels.iter().map(|(_, wheel)| archive(wheel, directory)).collect());
        let failures = install(self.cache.path(), &[wanted], fetch, Reporter::new(true))?;
        failures.into_values().next().map_or(Ok(()), Err)
    }

    fn fetched(&self) -> usize {
        self.fetched.load(Ordering::Relaxed)
    }

    fn is_whole(&self) -> bool {
        receipt::is_whole(self.cache.path(), &PIECE.to_string(), &self.pin)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cache.path().join("piece-1.0").join(name)
    }

    fn library(&self) -> String {
        fs::read_to_string(self.file("lib/a.so")).unwrap()
    }

    /// Names in the cache directory, except the lock file.
    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != ".setup.lock").collect();
        names.sort();
        names
    }
}

#[test]
fn a_piece_holds_what_its_pin_names_and_nothing_else() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    assert_eq!(fixture.library(), "library");
    assert_eq!(fs::read_to_string(fixture.file("lib/link.so")).unwrap(), "INPUT(a.so)\n");
    assert_eq!(fs::read_to_string(fixture.file("include/x/y.h")).unwrap(), "header");
    assert!(fixture.file("include/z.h").is_file());
    assert!(!fixture.file("other").exists());
    assert_eq!(fixture.entries(), ["piece-1.0"], "wheels and staging are gone");
}

#[test]
fn an_archive_of_npm_is_unpacked_alike() {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, text) in MEMBERS {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    let mut fixture = Fixture::new();
    fixture.wheel = tar.into_inner().unwrap().finish().unwrap();
    let wheel = &mut fixture.pin.wheels[0];
    wheel.requirement = "npm:@some/t==1.0".into();
    wheel.sha256 = receipt::hexadecimal(&Sha256::digest(&fixture.wheel));
    assert_eq!(wheel.of_npm().as_deref(), Some("@some/t@1.0"));
    fixture.install().unwrap();
    assert_eq!(fixture.library(), "library");
    assert!(fixture.file("include/x/y.h").is_file() && !fixture.file("other").exists());
}

#[test]
fn a_piece_that_is_there_is_not_fetched_again() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    fixture.install_by(&broken).unwrap();
    assert_eq!(fixture.fetched(), 1);
}

#[test]
fn pieces_share_an_archive_and_one_that_fails_stops_no_other() {
    let fixture = Fixture::new();
    let wanted = [(PIECE, 0), (Piece::Onnxruntime, 1), (Piece::LibtorchCuda, 2)].map(|(piece, number)| {
        let mut pin = fixture.pin.clone();
        pin.directory = format!("piece-{number}");
        if piece == Piece::Onnxruntime {
            pin.wheels[0].requirement = "broken==1.0".into();
        }
        Wanted { name: piece.to_string(), pin, tags: Vec::new(), instead: String::new() }
    });
    let fetch: Fetch<'_> = &|wheels, directory| {
        let names: Vec<_> = wheels.iter().map(|(_, wheel)| wheel.requirement.as_str()).collect();
        assert_eq!(names, ["t==1.0", "broken==1.0"]);
        let file = directory.join("some.whl");
        fs::write(&file, &fixture.wheel)?;
        Ok(vec![Ok(Archive { file, name: String::new() }), Err(BadInput("no network".into()).into())])
    };
    let failures = install(fixture.cache.path(), &wanted, fetch, Reporter::new(true)).unwrap();
    assert_eq!(failures.keys().collect::<Vec<_>>(), ["onnxruntime"]);
    assert!(tooling::is_bad_input(&failures["onnxruntime"]));
    assert_eq!(fixture.entries(), ["piece-0", "piece-2"]);
}

#[test]
fn a_wheel_that_is_not_the_pinned_one_is_refused() {
    let mut other = Fixture::new();
    other.pin.wheels[0].sha256 = "0".repeat(64);
    let zeros = "0".repeat(64);
    for (what, fixture, said) in [
        ("another sha256", other, ["t==1.0", zeros.as_str()]),
        ("lacks a member", Fixture::with_members(&MEMBERS[1..]), ["t==1.0", "t/lib/a.so"]),
        (
            "a member climbs out",
            Fixture::with_members(&[MEMBERS[0], ("t/include/../../../x", "")]),
            ["t==1.0", "leaves"],
        ),
    ] {
        let error = format!("{:#}", fixture.install().unwrap_err());
        assert!(said.iter().all(|said| error.contains(said)), "{what}: {error}");
        assert!(!fixture.is_whole(), "{what}");
        assert_eq!(fixture.entries(), [""; 0], "{what}: nothing is left behind");
    }
}

#[test]
fn a_failed_fetch_leaves_nothing_and_the_next_succeeds() {
    let fixture = Fixture::new();
    let error = fixture.install_by(&broken).unwrap_err();
    assert_eq!(error.to_string(), "the network is off");
    assert_eq!(fixture.entries(), [""; 0]);
    fixture.install().unwrap();
    assert!(fixture.is_whole());
}

#[test]
fn what_a_killed_set_up_staged_is_removed_unused() {
    let fixture = Fixture::new();
    let stale = fixture.cache.path().join(".setup-stale");
    fs::create_dir_all(stale.join("piece/lib")).unwrap();
    fs::write(stale.join("piece/lib/a.so"), "half").unwrap();
    fixture.install().unwrap();
    assert_eq!(fixture.library(), "library");
    assert_eq!(fixture.entries(), ["piece-1.0"]);
}

#[test]
fn sweeping_spares_a_set_up_at_work() {
    let fixture = Fixture::new();
    let lock = crate::receipt::lock(fixture.cache.path(), Reporter::new(true)).unwrap();
    let at_work = crate::receipt::directory(fixture.cache.path(), &lock).unwrap();
    crate::receipt::sweep(fixture.cache.path()).unwrap();
    assert!(at_work.path().exists());
    let left_behind = at_work.keep();
    drop(lock);
    crate::receipt::sweep(fixture.cache.path()).unwrap();
    assert!(!left_behind.exists());
}

#[test]
fn what_differs_from_its_receipt_is_installed_again() {
    type Damage = fn(&mut Fixture);
    let damages: [(&str, Damage); 6] = [
        ("another size", |fixture| fs::write(fixture.file("lib/a.so"), "librar").unwrap()),
        ("the same size, but other contents", |fixture| {
            fs::write(fixture.file("lib/a.so"), "LIBRARY").unwrap();
        }),
        ("a file less", |fixture| fs::remove_file(fixture.file("include/x/y.h")).unwrap()),
        ("no receipt", |fixture| {
            fs::remove_file(fixture.file(&receipt::file_name(&PIECE.to_string()))).unwrap()
        }),
        ("a torn receipt", |fixture| {
            let receipt = fixture.file(&receipt::file_name(&PIECE.to_string()));
            let text = fs::read_to_string(&receipt).unwrap();
            fs::write(&receipt, &text[..text.len() / 2]).unwrap();
        }),
        ("a changed pin", |fixture| {
            fixture.pin.write.insert("build-version".into(), "1.0\n".into());
        }),
    ];
    for (what, damage) in damages {
        let mut fixture = Fixture::new();
        fixture.install().unwrap();
        fs::write(fixture.file("lib/left-over.so"), "").unwrap();
        damage(&mut fixture);
        assert!(!fixture.is_whole(), "{what}");
        fixture.install().unwrap();
        assert!(fixture.is_whole(), "{what}");
        assert_eq!((fixture.library().as_str(), fixture.fetched()), ("library", 2), "{what}");
        assert!(!fixture.file("lib/left-over.so").exists(), "{what}");
    }
}

#[test]
fn a_library_that_seems_to_have_changed_is_hashed_again() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    // Another inode and another time, but the same contents: as after a copy of the cache.
    let library = fixture.file("lib/a.so");
    fs::remove_file(&library).unwrap();
    fs::write(&library, "library").unwrap();
    assert!(fixture.is_whole());
}

#[test]
fn a_deep_look_hashes_every_file() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    let look = |look| receipt::state(fixture.cache.path(), &PIECE.to_string(), &fixture.pin, look);
    assert_eq!(look(Look::Deep), State::Whole);
    // Neither its size nor its time of change says so.
    let library = fixture.file("lib/a.so");
    let modified = fs::metadata(&library).unwrap().modified().unwrap();
    let mut opened = fs::File::options().write(true).open(&library).unwrap();
    opened.write_all(b"LIBRARY").unwrap();
    opened.set_modified(modified).unwrap();
    assert_eq!(look(Look::Usual), State::Whole, "this is what a deep look is for");
    let State::Damaged(what) = look(Look::Deep) else { panic!("the change was not found") };
    assert!(what.contains("lib/a.so has sha256"), "{what}");
}

#[test]
fn files_of_others_in_the_directory_stay() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.file("")).unwrap();
    fs::write(fixture.file("mine.gguf"), "mine").unwrap();
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(fixture.file("mine.gguf")).unwrap(), "mine");
}

#[test]
fn of_two_set_ups_at_once_one_does_the_work() {
    let fixture = Fixture::new();
    let slow = |_: &Wheel, directory: &Path| {
        std::thread::sleep(Duration::from_millis(50));
        fixture.fetched.fetch_add(1, Ordering::Relaxed);
        let file = directory.join("some.whl");
        fs::write(&file, &fixture.wheel)?;
        Ok(file)
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| fixture.install_by(&slow).unwrap());
        }
    });
    assert!(fixture.is_whole());
    assert_eq!(fixture.fetched(), 1);
}
